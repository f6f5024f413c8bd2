"""Code that blocks the event loop is reported once, with its place; many short calls are not."""

from __future__ import annotations

import inspect
import time
import warnings

import pytest
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.collect import Progress, event_loop
from agentrl_core.collect.event_loop import Watchdog
from agentrl_core.rollout import Branch, Rollout


class Sleepy(Rollout):
    async def branch(self, branch: Branch) -> None:
        for _ in range(200):  # a busy machine may miss the first
            if Watchdog.reported:
                break
            time.sleep(0.2)  # noqa: ASYNC251 -- the forbidden call
        while not branch.over:
            await branch.turn()


class Busy(Rollout):
    async def branch(self, branch: Branch) -> None:
        while not branch.over:
            time.sleep(0.002)  # noqa: ASYNC251 -- short enough
            await branch.turn()


def collected(program: Rollout, tasks: int) -> arl.Batch:
    world = SmallWorld()
    return arl.Collector(world, world, recipes.GRPO.replace(rollout=program), task_pool=64)(tasks=tasks, group_size=4)


def test_a_program_that_holds_the_loop_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watchdog, "reported", set())
    with pytest.warns(
        RuntimeWarning, match=r"Sleepy.branch \(.*watchdog.py:\d+\) blocked the event loop"
    ) as caught_warnings:
        collected(Sleepy(), 1)
    lines, first = inspect.getsourcelines(Sleepy.branch)
    [slow_line] = [number for number, line in enumerate(lines, start=first) if "time.sleep(0.2)" in line]
    assert any(f"test_watchdog.py:{slow_line})" in str(each.message) for each in caught_warnings)


def test_many_short_calls_in_one_turn_of_the_loop_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watchdog, "reported", set())
    # So that a short pause of the machine during a call is not attributed to it.
    monkeypatch.setattr(event_loop, "_MOST_SECONDS", 0.25)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert collected(Busy(), 64).num_draws == 256, "each turn of the loop takes half a second in all"
    assert not Watchdog.reported


def test_a_progress_line_reports_counts_and_rates() -> None:
    progress = Progress(turns=20, tokens=300, running=4, at_engine=3, at_environment=1, ended=2)
    progress._began -= 10.0
    assert str(progress).startswith("20 turns (2.0/s), 300 tokens (30/s), 4 running (3 at the engine, 1 at the env")
    assert str(progress).endswith("2 ended")
    progress.failed, progress.abandoned = 1, 5
    assert str(progress).endswith("2 ended, 1 failed, 5 threads abandoned")
    progress.grew(300, shared=False)
    progress.grew(100, shared=True)
    assert str(progress).endswith("5 threads abandoned, sharing 1.33")
