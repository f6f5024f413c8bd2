"""A run that was killed in the middle of groups resumes from its records, with identical trees."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import resuming
import resuming_model
from hypothesis import given, settings
from hypothesis import strategies as st
from number_world import Numbers, SumWorld
from resuming import ITERATIONS, TABLES, outcome, train
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes, rollout
from agentrl_core.data.table_codes import CODES
from agentrl_core.engine import Request, Segment
from agentrl_core.env import StepResult, Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.rollout import Group


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    with arl.Store.open(folder, sync="never") as store:
        train(folder, store)
        return outcome(store)


def go_on(folder: Path, kills: int, seed: int, script: str = resuming.__file__, seconds: float = 0.04) -> int:
    """Kill the run at random moments until it completes; return the number of kills."""
    rng = np.random.default_rng(seed)
    killed = 0
    command = [sys.executable, script, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runs:
        assert runs.stdin is not None
        assert runs.stdout is not None
        while True:
            runs.stdin.write("\n")
            runs.stdin.flush()
            process = int(runs.stdout.readline().split()[1])
            # The time before a kill grows, so that a slow machine completes too.
            time.sleep(rng.uniform(0.0, seconds * (1 + killed / 10)) if killed < kills else 0.5 * killed)
            with contextlib.suppress(ProcessLookupError):  # it had completed already
                os.kill(process, signal.SIGKILL)
            if runs.stdout.readline().split()[1] == "0":
                break
            killed += 1
        runs.stdin.close()
    return killed


@pytest.mark.slow
@pytest.mark.parametrize("kills", [20, pytest.param(100, marks=pytest.mark.full)])
def test_kills_in_the_middle_of_groups_change_nothing(tmp_path: Path, undisturbed: dict[str, Any], kills: int) -> None:
    killed, runs = 0, 0
    while killed < kills:
        folder = tmp_path / str(runs)
        killed += go_on(folder, kills, runs)
        runs += 1
        with arl.Store.open(folder, read_only=True) as store:
            assert store.iteration == ITERATIONS
            result = outcome(store)
            for name in TABLES:
                assert result[name] == undisturbed[name], name
            for part in ("metrics", "components", "policy_versions"):
                assert result["state"][part] == undisturbed["state"][part]
            assert store.verify() == []
        assert not (tmp_path / f"{folder.name}.complaints").exists(), "what was recorded is never asked for again"
        judged = (tmp_path / f"{folder.name}.effects").read_text().split()
        assert len(set(judged)) >= 3
        assert runs < 50, "kills hit"


@pytest.mark.slow
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.full)])
def test_kills_of_a_run_with_a_model_change_nothing(tmp_path: Path, kills: int) -> None:
    """The same with a real model, row by row."""
    with arl.Store.open(tmp_path / "undisturbed", sync="never") as store:
        resuming_model.train(tmp_path / "undisturbed", store)
        expected = outcome(store)
    assert len(expected["trajectories"]) >= 12
    killed, runs = 0, 0
    while killed < kills:
        folder = tmp_path / str(runs)
        killed += go_on(folder, min(kills - killed, 25), runs, resuming_model.__file__, seconds=0.5)
        runs += 1
        with arl.Store.open(folder, read_only=True) as store:
            assert store.iteration == resuming_model.ITERATIONS
            result = outcome(store)
            for name in TABLES:
                assert result[name] == expected[name], name
            assert store.verify() == []
        assert not (tmp_path / f"{folder.name}.complaints").exists(), "what was recorded is never sampled again"
        assert runs < 50, "kills hit"


def test_an_interrupted_collection_resumes_in_the_same_process() -> None:
    """Ctrl-C in the middle: the next call gets the recorded data, and returns the same batch."""
    seeds: list[int] = []

    class Listening(SmallWorld):
        async def generate(self, request: Request) -> Segment:
            seeds.append(request.seed)
            return await super().generate(request)

    answered = itertools.count(1)

    def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
        if next(answered) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.02)
        return resuming.answer(task, seed, actions)

    calm = SmallWorld(resuming.answer)
    expected = arl.Collector(calm, calm, recipes.GRPO, task_pool=8)(tasks=2, group_size=2)
    world = Listening(answer)
    collect = arl.Collector(world, world, recipes.GRPO, task_pool=8)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            collect(tasks=2, group_size=2)
    finally:
        signal.signal(signal.SIGINT, before)
    first = list(seeds)
    batch = collect(tasks=2, group_size=2)
    assert first, "it was interrupted after something was sampled"
    assert len(seeds) == len(set(seeds)), "no segment is sampled twice"
    for name in ("nodes", "steps", "trajectories", "draws"):
        one, other = (pl.DataFrame(getattr(each, name)).drop("created_us", strict=False) for each in (batch, expected))
        assert one.equals(other, null_equal=True), name


class Delayed(Numbers):
    """Answers after delays that affect no result."""

    def __init__(self, delays: list[float], failures: set[int]) -> None:
        self.delays = delays
        self.failures = failures
        self.request_count = 0

    async def generate(self, request: Request) -> Segment:
        import asyncio

        self.request_count += 1
        number = self.request_count
        await asyncio.sleep(self.delays[number % len(self.delays)])
        if number in self.failures:
            raise ConnectionError("busy")
        return await super().generate(request)


@settings(max_examples=15, deadline=None)
@given(
    delays=st.lists(st.floats(0, 0.003), min_size=1, max_size=7),
    failures=st.sets(st.integers(1, 40), max_size=3),
    concurrency=st.sampled_from([1, 3, 7, 1024]),
    program=st.sampled_from(
        [rollout.Independent(), rollout.EntropyBranching(budget=5, initial=2, probability=0.7), resuming.Search()]
    ),
)
def test_who_is_faster_changes_nothing(
    delays: list[float], failures: set[int], concurrency: int, program: rollout.Rollout
) -> None:
    class Judge:
        @staticmethod
        def judge(group: str, text: str) -> float:
            del group
            return float(len(text))

    resuming.WORLDS[:] = [Judge()]  # type: ignore[list-item]
    recipe = recipes.GRPO.replace(rollout=program)
    batches = []
    for engine, most in ((Numbers(), 1024), (Delayed(delays, failures), concurrency)):
        collect = arl.Collector(engine, SumWorld(), recipe, seed=3, task_pool=8, concurrency=most)
        batches.append(collect(tasks=3, group_size=3))
    for name in ("nodes", "steps", "trajectories", "draws", "decisions"):
        one, other = (pl.DataFrame(getattr(each, name)).drop("created_us", strict=False) for each in batches)
        assert one.equals(other, null_equal=True), name


def test_recorded_responses_that_a_changed_program_does_not_use_are_reported(tmp_path: Path) -> None:

    class Shorter(rollout.Rollout):
        async def group(self, group: Group) -> None:
            await group.run(group.start_many(2))

    class Fails(rollout.Rollout):
        async def group(self, group: Group) -> None:
            await group.run(group.start_many(3))
            raise InvalidInputError("stop here")

    world = SmallWorld()
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(world, world, recipes.GRPO.replace(rollout=Fails()), store=store, task_pool=8)
        with pytest.raises(InvalidInputError, match="stop here"):
            collect(tasks=1, group_size=2)
        recorded = len(store.rollout_log(0).records())
        assert recorded >= 3 * 3
        with warnings.catch_warnings(record=True, action="always") as caught_warnings:
            recipe = recipes.GRPO.replace(rollout=Shorter())
            batch = arl.Collector(world, world, recipe, store=store, task_pool=8)(tasks=1, group_size=2)
        assert batch.num_draws == 2
        assert len(caught_warnings) == 1
        assert f"of {recorded} recorded answers were not used after the resume (the first: 0.0/" in str(
            caught_warnings[0].message
        )


@pytest.mark.parametrize("kept", [True, False], ids=["store", "memory"])
def test_samples_that_a_changed_program_does_not_use_are_stored_without_draws(tmp_path: Path, *, kept: bool) -> None:
    """The first program starts three branches, the second two, with another first turn of its second branch."""
    changed: list[bool] = []

    class Changes(rollout.Rollout):
        async def group(self, group: Group) -> None:
            if not changed:
                await group.run(group.start_many(3))
                await group.spawn(group.task, program=rollout.Independent())
                raise InvalidInputError("stop here")
            first, second = group.start_many(2)
            await second.turn(sampling=group.sampling(temperature=0.5))
            await group.run([first, second])

    world, recipe = SmallWorld(), recipes.GRPO.replace(rollout=Changes())
    store = arl.Store.open(tmp_path) if kept else None
    collect = arl.Collector(world, world, recipe, store=store, task_pool=8)
    with pytest.raises(InvalidInputError, match="stop here"):
        collect(tasks=1, group_size=2)
    changed.append(True)
    if kept:
        collect = arl.Collector(world, world, recipe, store=store, task_pool=8)
    with pytest.warns(RuntimeWarning, match=r"recorded answers were not used .* are stored without draws"):
        batch = collect(tasks=1, group_size=2)
    rows = pl.DataFrame(batch.trajectories)
    aborted = rows.filter(pl.col("info").str.contains("recorded as"))
    # Two turns each of the third branch and of the derived group, and the first turn of the second branch with a
    # different request. Its answer is equal, so that its second turn matches again.
    assert sorted(json.loads(info)["aborted"].split()[2].rstrip(",") for info in aborted["info"]) == [
        *(f"0.0.0/0.0/segment{turn}" for turn in range(2)),
        "0.0/0.1/segment0",
        *(f"0.0/0.2/segment{turn}" for turn in range(2)),
    ]
    assert set(aborted["status"]) == {CODES["status"].index("aborted")}
    assert set(aborted["role"]) == {CODES["role"].index("helper")}
    assert (batch.num_draws, rows.height) == (2, 2 + 5)
    nodes = pl.DataFrame(batch.nodes).filter(pl.col("node_id").is_in(aborted["leaf_node_id"].implode()))
    assert nodes["tokens"].list.len().to_list() == [4] * 5
    assert nodes["logprobs"].null_count() == 0
    collect.end_iteration(recipe.credit(batch), {})
    if store is not None:
        assert store.verify() == []
        store.close()


def test_an_engine_with_older_weights_is_refused(tmp_path: Path) -> None:
    world = SmallWorld()
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(world, world, recipes.GRPO, store=store, task_pool=8)
        batch = collect(tasks=1, group_size=2)
        world.update_weights(None, version=1)
        collect.end_iteration(recipes.GRPO.credit(batch), {}, checkpoint="weights-1.pt")
    with arl.Store.open(tmp_path) as store:
        fresh = SmallWorld()
        collect = arl.Collector(fresh, fresh, recipes.GRPO, store=store, task_pool=8)
        with pytest.raises(
            InvalidInputError,
            match=r"weights of version 0, but the run continues with version 1, those of checkpoint 'weights-1.pt'; "
            r"load them, and call engine.update_weights\(model, version=1\)",
        ):
            collect(tasks=1, group_size=2)
        fresh.update_weights(None, version=1)
        assert collect(tasks=1, group_size=2).num_draws == 2
