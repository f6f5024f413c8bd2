"""The pages for users of other trainers: our loop runs on each; the other loop runs if its package is installed."""

from __future__ import annotations

import asyncio
import copy
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from pages import DOCS, blocks, run, text_of

import agentrl_core as arl

CUTS = {"iteration, 40": "iteration, 2", "tasks=8, group_size=8": "tasks=2, group_size=3", "lr=1e-6": "lr=1e-3"}
OURS = {"trl": 1, "verl": 1, "verifiers": 1, "slime": 0}
"""The place of our loop among the Python blocks of each page: TRL, verl, prime-rl with verifiers, and slime."""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def untrained(_built: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return a small untrained model and its tokenizer; the model is the test's own."""
    model, tokenizer = _built
    return copy.deepcopy(model), tokenizer


@pytest.fixture(scope="module")
def _built() -> tuple[Any, Any]:
    from agentrl_core import env, warm_start

    return warm_start.build(env.ReasoningGym(["chain_sum"], seed=0), seed=0)


def test_every_page_is_tested() -> None:
    assert {path.stem for path in (DOCS / "coming_from").iterdir()} == set(OURS)


@pytest.mark.parametrize("page", OURS)
def test_our_loop_runs(page: str, untrained: tuple[Any, Any]) -> None:
    model, tokenizer = untrained
    before = {name: value.clone() for name, value in model.state_dict().items()}
    code = blocks(f"coming_from/{page}")[OURS[page]]
    assert len([line for line in code.splitlines() if line.strip()]) < 45
    names = run(f"coming_from/{page}", {"model": model, "tokenizer": tokenizer}, CUTS, only=OURS[page])
    names["store"].close()
    with arl.Store.open(f"runs/from_{page}", read_only=True) as store:
        assert store.iteration == 2
        assert len(store.trajectories) == 12
        # Only sampled tokens are trained.
        assert pl.DataFrame(store.draws).height == 12
    # Right answers are paid, wrong ones are not, and both end the episode.
    world = names["Sums"]()
    (task,) = world.tasks(1, start=5)
    assert [world.reset(task, 0).step(text).reward for text in (" 7 ", "8")] == [1.0, 0.0]
    rewards = names["batch"].column("reward", "draw")
    changed = any(not before[name].equal(value) for name, value in model.state_dict().items())
    assert changed or np.ptp(rewards) == 0.0


def test_the_tables_name_both_sides() -> None:
    for page in OURS:
        rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text_of(f"coming_from/{page}"), re.MULTILINE)
        assert len(rows) > 10, page
        assert all(theirs.strip() and ours.strip() for theirs, ours in rows)


def test_verls_reward_and_options() -> None:
    pytest.importorskip("verl", reason="verl is installed by `make test`")
    import verl
    from omegaconf import OmegaConf

    names = run("coming_from/verl", only=0)
    assert [names["compute_score"]("sums", text, "7") for text in (" 7", "8")] == [1.0, 0.0]
    config = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    checked = 0
    for word in shlex.split(blocks("coming_from/verl", "bash")[0].replace("\\\n", " ")):
        key, _, value = word.partition("=")
        if value:
            assert OmegaConf.select(config, key, default="missing") != "missing", key
            checked += 1
    assert checked == 10


def test_verls_advantages_are_ours() -> None:
    pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is installed by `make test`")
    names = run("coming_from/verl", only=2)
    assert float(abs(names["theirs"]).max()) > 0.5


def test_verifiers() -> None:
    pytest.importorskip("verifiers.v1", reason="verifiers is installed by hand")
    names = run("coming_from/verifiers", only=0)
    tasks = list(names["Sums"](names["vf"].TasksetConfig()).take(3))
    assert [task.data.prompt for task in tasks] == ["0 + 2 =", "1 + 2 =", "2 + 2 ="]
    assert [asyncio.run(tasks[0].right(SimpleNamespace(last_reply=text))) for text in (" 2", "3")] == [1.0, 0.0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_trl(untrained: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    pytest.importorskip("trl", reason="TRL is installed by `make test`")
    model, tokenizer = untrained
    on_the_cpu = "use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], save_strategy='no', "
    names = run(
        "coming_from/trl",
        {"model": model, "tokenizer": tokenizer},
        {
            "max_steps=40": "max_steps=1",
            "train_batch_size=64": "train_batch_size=8",
            'output_dir="runs/trl",': f'output_dir="runs/trl", disable_tqdm=True, {on_the_cpu}',
        },
        only=0,
    )
    assert names["trainer"].state.global_step == 1
