"""Stragglers are stopped after enough other rollouts have ended, and the stopped ones are recorded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import SmallWorld

from agentrl_core import Batch, Collector, Store, recipes, rollout
from agentrl_core.data.table_codes import CODES
from agentrl_core.engine import Request, Segment
from agentrl_core.env import StepResult, Task
from agentrl_core.rollout import EarlyStop


class Uneven(SmallWorld):
    """Trajectories whose seed is divisible by 4 are long: they end only if they are stopped."""

    def __init__(self, *, endless: bool = True) -> None:
        super().__init__(self._answered)
        self.endless = endless
        self.requested_seeds: list[int] = []

    def _answered(self, task: Task, seed: int, actions: list[str]) -> StepResult:
        del task
        if seed % 4 == 0 and (self.endless or len(actions) < 50):
            return StepResult("go on")
        return StepResult(reward=float(seed % 2), terminated=True, success=True)

    def abort(self, request: Request) -> None:
        """Generation is immediate, so there is nothing to abort."""

    async def generate(self, request: Request) -> Segment:
        self.requested_seeds.append(request.seed)
        await asyncio.sleep(0.0002)
        return await super().generate(request)


def statuses(batch: Batch) -> list[str]:
    return [CODES["status"][status] for status in batch.trajectories.column("status").tolist()]


def collector(world: Uneven, program: EarlyStop, store: Store | None = None) -> Collector:
    recipe = recipes.GRPO.replace(rollout=program)
    return Collector(world, world, recipe, seed=4, task_pool=64, store=store, context_tokens=100_000)


def test_rollouts_that_never_end_are_aborted() -> None:
    batch = collector(Uneven(), EarlyStop(of_all=0.5, of_group=0.25))(tasks=6, group_size=8)
    status_list = statuses(batch)
    assert set(status_list) == {"finished", "aborted"}
    assert batch.num_draws == status_list.count("finished") >= 24
    of_groups = pl.DataFrame(batch.draws).group_by("group_id").len()["len"].to_list()
    assert len(of_groups) == 6
    assert min(of_groups) >= 2


def test_at_one_everybody_is_waited_for() -> None:
    batch = collector(Uneven(endless=False), EarlyStop(of_all=1.0, of_group=1.0))(tasks=4, group_size=4)
    assert statuses(batch) == ["finished"] * 16


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), data=st.data())
def test_enough_equals_the_naive_formula(sizes: list[int], data: Any) -> None:
    ended = [data.draw(st.integers(0, size)) for size in sizes]
    of_all, of_group = data.draw(st.sampled_from([0.5, 0.9, 1.0])), data.draw(st.sampled_from([0.25, 0.75, 1.0]))
    naive = True
    for count, size in zip(ended, sizes, strict=True):
        naive = naive and count >= round(of_group * size)
    total = 0
    for count in ended:
        total += count
    naive = naive and total >= of_all * sum(sizes)
    assert EarlyStop(of_all=of_all, of_group=of_group).enough(ended, sizes) == naive


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_resumed_run_stops_the_same_rollouts(tmp_path: Path, moment: str) -> None:
    """The run is killed before or just after the first stop; exactly the rollouts that ended in time are drawn."""

    class Cut(type(recipes.GRPO.reward)):  # type: ignore[misc]
        def __call__(self, batch: Batch) -> Batch:
            if cut[0] == "after":
                raise KeyboardInterrupt
            return super().__call__(batch)

    cut = [moment]
    program = EarlyStop(of_all=0.5, of_group=0.25)
    recipe = recipes.GRPO.replace(rollout=program, reward=Cut())
    with Store.open(tmp_path, sync="never") as store:
        world = Uneven()
        collect = Collector(world, world, recipe, seed=4, task_pool=64, store=store, context_tokens=100_000)
        if moment == "before":
            world.generate = stopping(world, 20)  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            collect(tasks=6, group_size=8)
        recorded = [text for name, text in store.rollout_log(0).records() if name == b"cohort 0.0/in time"]
        assert len(recorded) == (moment == "after")
    cut[0] = "never"
    drawn = []
    for _ in range(2):
        with Store.open(tmp_path, sync="never") as store:
            world = Uneven()
            collect = Collector(world, world, recipe, seed=4, task_pool=64, store=store, context_tokens=100_000)
            batch = collect(tasks=6, group_size=8)
            drawn.append(batch.column("token", "token").tolist())
            assert statuses(batch).count("finished") == batch.num_draws >= 24
            if recorded:
                assert batch.num_draws == len(json.loads(recorded[0][16:])), "those that were in time, and nobody else"
    assert drawn[0] == drawn[1]


def stopping(world: Uneven, behind: int) -> Any:
    """Return an engine that fails after a number of segments."""
    generate = world.generate

    async def until(request: Request) -> Segment:
        if len(world.requested_seeds) >= behind:
            raise KeyboardInterrupt
        return await generate(request)

    return until


def test_the_recipe_of_the_public_code() -> None:
    recipe = recipes.get("loop").replace(rollout=rollout.EarlyStop())
    assert (recipe.rollout.of_all, recipe.rollout.of_group) == (0.9, 0.75)  # type: ignore[attr-defined]
