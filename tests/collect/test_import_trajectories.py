"""Imported trajectories: chats and experts that were sampled elsewhere, as stored by a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hand_made import tiny_model
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import replay
from agentrl_core.component import Where
from agentrl_core.data.forest import Forest
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipe import Recipe
from agentrl_core.recipes import GRPO
from agentrl_core.select import ComposedSelector, NearTarget
from agentrl_core.update.minibatches import Updates


def recipe(old_logprob: str = "none", **options: Any) -> Recipe:
    memory = replay.Memory(where=Where(origin="imported", column="score", above=0.5))
    mix = replay.Mix(memory, count=2, old_logprob=old_logprob, **options)  # type: ignore[arg-type]
    return GRPO.replace(replay=mix, select=ComposedSelector(score=NearTarget(0.5)))


def chats(forest: Forest, rewards: list[float], *, origin: Any = "imported") -> None:
    """Return a chat for each reward, of the first tasks: three prompt tokens, an action, an observation, an action."""
    for number, reward in enumerate(rewards):
        forest.add_group(number, f"train {number}")
        chat = forest.start(number, 0, origin=origin)
        forest.append_chats([chat], [[1, 2, number + 3, 5, 6, 1, 7]], [[0, 0, 0, 1, 1, 0, 1]])
        forest.finish(chat, reward=reward, success=reward > 0.5)


def collector(store: arl.Store | None, recipe: Recipe) -> arl.Collector:
    world = SmallWorld()
    return arl.Collector(world, world, recipe, store=store, seed=5, task_pool=16)


def train(folder: Path, recipe: Recipe, *, iterations: int = 3, reopened: bool = False) -> list[arl.Batch]:
    """Import three chats and train; `reopened`: reopen everything between steps, like a new process."""
    store = arl.Store.open(folder, sync="never")
    collect = collector(store, recipe)
    while collect.iteration <= iterations:
        if collect.iteration == 0:
            with collect.import_trajectories() as forest:
                chats(forest, [1.0, 0.0, 0.9])
        else:
            collect.end_iteration(recipe.credit(collect(tasks=2, group_size=3)), {})
        if reopened:
            store.close()
            store = arl.Store.open(folder, sync="never")
            collect = collector(store, recipe)
    assert store.verify() == []
    batches = [store.batch(number) for number in range(iterations + 1)]
    store.close()
    return batches


def test_imported_trajectories_are_replayed_without_old_log_probs(tmp_path: Path) -> None:
    brought, *rest = train(tmp_path / "run", recipe())
    assert brought.num_draws == 0
    assert brought.trajectories.column("origin").tolist() == [3, 3, 3]
    assert len(rest) == 3
    for batch in rest:
        draws = pl.DataFrame(batch.draws)
        again = draws.filter(pl.col("source") == 1)
        assert sorted(again["trajectory_id"]) == [0, 2], "those that are worth it, once each"
        assert again["old_logprob"].to_list() == [2, 2]
        assert again["reason"][0].startswith("mixed in, uniform; of iteration 0, score")
        trained = batch.column("trainable", "token")[np.isnan(batch.column("behaviour_logprob", "token"))]
        assert trained.sum() == 6, "three tokens of each"


def test_ratios_are_those_of_the_rows_that_were_sampled_here(tmp_path: Path) -> None:
    batch = recipe().credit(train(tmp_path / "run", recipe())[1])
    policy = tiny_model("llama", torch.float32, vocab_size=10, max_position_embeddings=64)
    updates = Updates(batch, recipe().losses(), metrics_of_all=True)
    for update in updates:
        for pack in update.pack(max_tokens=4096):
            update.loss(pack.run(policy), pack).backward()
    metrics = updates.metrics
    assert (metrics["tokens@fresh"], metrics["tokens@replay"]) == (48, 6)
    assert metrics["ratio"] == metrics["ratio@fresh"] != 1.0
    assert metrics["approximate_kl"] == metrics["approximate_kl@fresh"]
    gradients = [each.grad for each in policy.parameters() if each.grad is not None]
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert any(gradient.abs().sum() > 0 for gradient in gradients)


def test_it_counts_in_no_success_rate_and_no_tracker(tmp_path: Path) -> None:
    with arl.Store.open(tmp_path / "run") as store:
        collect = collector(store, recipe())
        with collect.import_trajectories() as forest:
            chats(forest, [1.0, 1.0])
        assert "success" not in store.state["metrics"]
        assert len(store.tasks) == 0
        assert store.arrays["select[0].ComposedSelector/rows"].tolist() == []
        assert store.arrays["replay[0].Mix/memory/trajectory_id"].tolist() == [0, 1]


def test_it_is_the_same_after_a_new_start_at_every_iteration(tmp_path: Path) -> None:
    one, other = train(tmp_path / "one", recipe()), train(tmp_path / "other", recipe(), reopened=True)
    for first, second in zip(one, other, strict=True):
        for table in ("nodes", "steps", "trajectories", "draws"):
            mine, theirs = (
                pl.DataFrame(getattr(each, table)).drop("created_us", strict=False) for each in (first, second)
            )
            assert mine.equals(theirs, null_equal=True), table


def test_a_failed_import_writes_nothing_and_can_be_retried(tmp_path: Path) -> None:
    def bring(*, breaks: bool) -> None:
        with collect.import_trajectories() as forest:
            chats(forest, [1.0])
            if breaks:
                raise ZeroDivisionError

    with arl.Store.open(tmp_path / "run") as store:
        collect = collector(store, recipe())
        with pytest.raises(ZeroDivisionError):
            bring(breaks=True)
        assert (collect.iteration, store.sequence) == (0, 0), "nothing was written"
        bring(breaks=False)
        assert collect.iteration == 1


def test_recomputed_log_probs_are_read_by_the_ratio(tmp_path: Path) -> None:
    batch = train(tmp_path / "run", recipe("recomputed"), iterations=1)[1]
    with pytest.raises(InvalidInputError, match="annotate"):
        recipe("recomputed").updates(batch)
    batch = arl.annotate(batch, "recomputed_logprob", lambda pack: (pack.target % 3).float(), max_tokens=4096)
    assert len(recipe("recomputed").updates(batch)) == 1


def test_unsupported_imports_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no store"), collector(None, GRPO).import_trajectories():
        raise AssertionError
    with arl.Store.open(tmp_path / "run") as store:
        collect = collector(store, recipe("behaviour"))
        with (
            pytest.raises(InvalidInputError, match="has origin 'generated'; start it"),
            collect.import_trajectories() as forest,
        ):
            chats(forest, [1.0], origin="generated")
        assert store.sequence == 0
        with collect.import_trajectories() as forest:
            chats(forest, [1.0])
        with pytest.raises(InvalidInputError, match="not sampled"):
            collect(tasks=2, group_size=3)
    with arl.Store.open(tmp_path / "other") as store:
        collect = collector(store, recipe())
        collect(tasks=2, group_size=3)
        with (
            pytest.raises(InvalidInputError, match="already has another batch"),
            collect.import_trajectories() as forest,
        ):
            chats(forest, [1.0])
