"""One browser for all tests of the page, and pages of two runs: one of a training, and a hostile one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, program
from hostile import HOSTILE

import agentrl_core as arl
from agentrl_core.view import Page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if program() is None:
        pytest.fail("the page is looked at in Chromium, which is missing: make browser")
    with Browser() as session:
        yield session


@pytest.fixture(scope="session")
def page_file(recorded, tmp_path_factory) -> Path:
    with arl.Store.open(recorded, read_only=True) as store:
        return Page.of(store).save(tmp_path_factory.mktemp("pages") / "run.html")


@pytest.fixture(scope="session")
def hostile_file(tmp_path_factory) -> Path:
    """A page of a run with hostile texts as task and tokens; the second member differs only in its last token."""
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({text: place for place, text in enumerate(HOSTILE)}, unk_token=HOSTILE[0]))
    forest = arl.Forest()
    forest.add_group(0, HOSTILE[0])
    count = len(HOSTILE)
    for member, reward in enumerate((1.0, 0.0)):
        path = forest.start(0, member)
        forest.append(path, list(range(count)), kind="prompt")
        action_tokens = [*range(count - 1), member]
        forest.append(path, action_tokens, kind="action", logprobs=[-0.5] * count)
        forest.step(path, reward=None)
        forest.finish(path, reward=reward, success=reward > 0)
    folder = tmp_path_factory.mktemp("hostile") / HOSTILE[4].replace("/", "_")
    with arl.Store.open(folder) as store:
        batch = store.rebase(forest.freeze())
        store.append(batch, iteration=0)
        store.close_iteration(batch.with_columns("draw", advantage=[0.5, -0.5]), {"metrics": {HOSTILE[1]: 1.0}})
        return Page.of(store, tokenizer=tokenizer).save(folder.parent / "page.html")


@pytest.fixture(scope="session")
def drifted_file(tmp_path_factory) -> Path:
    """A page of a run of two agents: the template strips a token of the first one's, and there is a second log-prob."""
    forest = arl.Forest()
    forest.add_group(0, "a task of two")
    first, second = forest.start(0, 0), forest.start(0, 1, agent=1)
    forest.ingest(
        [first, first],
        prompts=[[1, 2], [1, 2, 3, 4, 5]],
        outputs=[[3, 4, 9], [6, 9]],
        logprobs=[[-0.5, -0.1, -0.2], [-0.3, -0.1]],
    )
    forest.append(second, [11, 12, 13], kind="prompt")
    forest.append(second, [14, 15], kind="action", logprobs=[-1.0, -2.0])
    forest.step(second)
    for path, reward in ((first, 1.0), (second, 0.0)):
        forest.finish(path, reward=reward)
    folder = tmp_path_factory.mktemp("drifted") / "run"
    with arl.Store.open(folder) as store:
        batch = store.rebase(forest.freeze())
        store.append(batch, iteration=0)
        batch = batch.with_columns("draw", advantage=[0.5, -0.5])
        count = batch.offsets("node_token")[-1]
        batch = batch.with_columns("node_token", reference_logprob=np.full(count, -0.25))
        batch = batch.with_columns("node_token", recomputed_logprob=np.full(count, -0.25))
        store.close_iteration(batch, {"metrics": {"kl": float("nan"), "loss": 0.5}})
        return Page.of(store).save(folder.parent / "page.html")


@pytest.fixture(scope="session")
def alike_file(tmp_path_factory) -> Path:
    """A page of a group of five: three rewarded rollouts and an unrewarded one with equal starts, and one alone."""
    forest = arl.Forest()
    forest.add_group(0, "a task")
    for member, reward in enumerate((1.0, 1.0, 0.0, 1.0, 1.0)):
        path = forest.start(0, member)
        forest.append(path, [1, 2], kind="prompt")
        turn_tokens = [[3, 4], [6]] if member < 4 else [[7]]
        for turn, tokens in enumerate(turn_tokens):
            if turn:
                forest.append(path, [5], kind="observation")
            forest.append(path, tokens, kind="action", logprobs=[-0.5] * len(tokens))
            forest.step(path)
        forest.finish(path, reward=reward, success=reward > 0)
    folder = tmp_path_factory.mktemp("alike") / "run"
    with arl.Store.open(folder) as store:
        batch = store.rebase(forest.freeze())
        store.append(batch, iteration=0)
        store.close_iteration(batch.with_columns("draw", advantage=[0.5, 0.5, -2.0, 0.5, 0.5]), {})
        return Page.of(store).save(folder.parent / "page.html")


@pytest.fixture(scope="session")
def trained_file(tmp_path_factory) -> Path:
    """A page of two iterations with the metrics of a training loop, all of which change."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    with arl.Store.open(folder) as store:
        for iteration in range(2):
            forest = arl.Forest(iteration=iteration)
            forest.add_group(0, "a task")
            for member in range(2):
                path = forest.start(0, member)
                forest.append(path, [1, 2], kind="prompt")
                forest.append(path, [3 + member + iteration], kind="action", logprobs=[-0.5])
                forest.step(path)
                forest.finish(path, reward=float(member), success=bool(member))
            batch = store.rebase(forest.freeze())
            store.append(batch, iteration=iteration)
            losses = dict.fromkeys(("clip_fraction", "loss", "approximate_kl", "gradient_norm"), 0.1 + iteration)
            tables = {"collect": {"failed": iteration, "draws": 2}, "tokens": {"generated": 2 + iteration}}
            metrics = {**losses, "my_metric": 1.5 * iteration, **tables}
            store.close_iteration(batch.with_columns("draw", advantage=[-0.5, 0.5]), {"metrics": metrics})
        return Page.of(store).save(folder.parent / "page.html")
