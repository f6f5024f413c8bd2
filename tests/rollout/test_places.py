"""Slots of pruned branches go to other groups, and there are never more branches than slots."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mazes import Babbler
from sampled import RecordingEngine, check_sampled
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.component import option
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.env import StepFlag, StepResult, Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipes.arrol import PruneRunning
from agentrl_core.rollout import Group, Rollout

PRUNED = 3


BEGUN: list[Group] = []
"""The groups that have begun; the latest engine counts their running members."""


def several_turns(task: Task, seed: int, actions: list[str]) -> StepResult:
    """Play two to five turns, by the seed."""
    del task
    if len(actions) < 2 + seed % 4:
        return StepResult("go on", flags=StepFlag.TOOL_RESULT)
    return StepResult(reward=float(seed % 2), terminated=True, success=bool(seed % 2))


class Counting(SmallWorld):
    """An engine that counts running members at each request, and answers after a while."""

    def __init__(self, *, slow: bool = True) -> None:
        super().__init__(several_turns)
        BEGUN.clear()
        self.running: list[int] = []
        self.order: list[str] = []
        self.slow = slow

    async def generate(self, request: Request) -> Segment:
        self.running.append(sum(not branch.over for group in BEGUN for branch in group.branches))
        self.order.append(request.group)
        for _ in range(request.seed % 7 if self.slow else 0):
            await asyncio.sleep(0)
        return await super().generate(request)


@dataclass(frozen=True)
class Pruned(Rollout):
    """A program in which all take a turn, then all but some are stopped, and the others continue."""

    keep: int = option(1, at_least=1)
    releases: bool = True

    async def group(self, group: Group) -> None:
        BEGUN.append(group)
        branches = group.start_many(group.size)
        await group.turn(branches)
        pruned = branches[self.keep :]
        for branch in pruned:
            branch.stop("pruned")
        if self.releases:
            group.release_slots(pruned)
            group.release_slots(pruned[:1])  # once is enough
        await group.run([branch for branch in branches if not branch.over])


def collected(program: Rollout, world: Any, **options: Any) -> arl.Batch:
    size = {"tasks": options.pop("tasks"), "group_size": options.pop("group_size")}
    recorder = RecordingEngine(world)
    recipe = recipes.GRPO.replace(rollout=program)
    batch = arl.Collector(recorder, world, recipe, task_pool=8, **options)(**size)
    check_sampled(batch, recorder)
    return batch


@settings(max_examples=25, deadline=None)
@given(
    tasks=st.integers(1, 5),
    size=st.integers(2, 6),
    keep=st.integers(1, 6),
    more=st.integers(0, 8),
    seed=st.integers(0, 1 << 20),
)
def test_there_are_never_more_branches_than_places(tasks: int, size: int, keep: int, more: int, seed: int) -> None:
    options = {"tasks": tasks, "group_size": size, "concurrency": size + more, "seed": seed}
    world = Counting()
    batch = collected(Pruned(keep), world, **options)
    assert 0 < max(world.running) <= size + more
    other = Counting()
    plain = collected(Pruned(keep, releases=False), other, **options)
    assert max(other.running) <= size + more
    for table in ("nodes", "steps", "trajectories", "draws", "decisions"):
        one, two = (pl.DataFrame(getattr(each, table)).drop("created_us", strict=False) for each in (batch, plain))
        assert one.equals(two, null_equal=True), "whoever waits for whom, the trees are the same"


@pytest.mark.parametrize("releases", [True, False])
def test_a_group_that_waits_begins_when_places_are_given_back(releases: bool) -> None:
    # Six slots: the first group holds four, keeps one, and returns three. 2 + 3 are enough for the second group, which
    # then begins while the first continues; otherwise it begins after it.
    world = Counting(slow=False)
    collected(Pruned(1, releases), world, tasks=2, group_size=4, concurrency=6)
    first = max(place for place, name in enumerate(world.order) if name == "0.0")
    second = min(place for place, name in enumerate(world.order) if name == "0.1")
    assert (second < first) == releases
    assert max(world.running) == (5 if releases else 4)


class Babbling(Babbler):
    """An engine that samples forty tokens after a while; counts as above."""

    def __init__(self) -> None:
        super().__init__(lambda tokens: [(9, 1.0)] if len(tokens) >= 40 else [(3, 0.6), (4, 0.4)])
        BEGUN.clear()
        self.running: list[int] = []

    async def generate(self, request: Request) -> Segment:
        self.running.append(sum(not branch.over for group in BEGUN for branch in group.branches))
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().generate(request)


class GroupRecorder(PruneRunning):
    """A program that appends its groups to `BEGUN` when they begin."""

    async def group(self, group: Group) -> None:
        BEGUN.append(group)
        await super().group(group)


def test_arrol_releases_the_slots_of_pruned_branches() -> None:
    # Six slots; the first group holds four and returns two: then four are free for the second.
    world = Babbling()
    options = {"tasks": 2, "group_size": 4, "concurrency": 6, "sampling": Sampling(max_tokens=64)}
    batch = collected(GroupRecorder(tokens=2, keep=0.5, begin=0), world, **options)
    assert pl.DataFrame(batch.trajectories)["status"].to_list().count(PRUNED) == 4
    assert max(world.running) == 6
    world = Babbling()
    collected(GroupRecorder(tokens=2, keep=0.5, begin=1), world, **options)
    assert max(world.running) == 4, "without pruning one group runs after the other"


class TooMany(Pruned):
    async def group(self, group: Group) -> None:
        await super().group(group)
        group.start()
        group.start(role="helper")
        group.start()


class Forks(Pruned):
    async def group(self, group: Group) -> None:
        branches = group.start_many(2)
        await group.turn(branches)
        branches[1].stop("pruned")
        group.release_slots(branches[1:])
        branches[0].fork()


class StillRuns(Pruned):
    async def group(self, group: Group) -> None:
        group.release_slots(group.start_many(1))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (TooMany, r"group 0\.0 has 1 running members for its 1 slots, as it released"),
        (Forks, r"group 0\.0 has 1 running members for its 1 slots, as it released"),
        (StillRuns, r"branch 0\.0/0\.0 is still running; give ended members"),
    ],
)
def test_slots_cannot_be_reused_after_release_or_released_while_running(program: type[Pruned], message: str) -> None:
    world = Counting()
    with pytest.raises(InvalidInputError, match=message):
        collected(program(), world, tasks=1, group_size=2)
