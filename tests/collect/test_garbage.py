"""A collector or an environment without references ends its threads and processes, without `close`."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from pathlib import Path

import pytest
from loop_agents import collector, tool_user
from process_world import ProcessWorld
from small_world import SmallWorld

from agentrl_core import Collector, recipes
from agentrl_core.exceptions import InvalidInputError

SECONDS = 600.0
"""Timeout of a hang, long enough for a slow machine."""


class Threads(SmallWorld):
    """An environment whose episodes run in threads."""

    runs = "thread"


def threads(*names: str) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name in names}


def ended(before: set[threading.Thread], *names: str) -> None:
    gc.collect()
    for thread in threads(*names) - before:
        thread.join(SECONDS)
        assert not thread.is_alive(), thread.name


@pytest.mark.parametrize("staleness", [0, 2])
def test_threads_of_episodes_end(staleness) -> None:
    before = threads("agentrl-episode")
    for _ in range(5):
        collect = Collector(Threads(), Threads(), recipes.GRPO, task_pool=16, staleness=staleness)
        collect(tasks=2, group_size=4)
        collect.evaluate(tasks=2)
        assert threads("agentrl-episode") - before
        for thread in [each for each in threading.enumerate() if each.name.startswith("agentrl-iteration")]:
            thread.join(SECONDS)  # a prefetched iteration needs its collector
        del collect
        ended(before, "agentrl-episode")
    assert threads("agentrl-episode") <= before  # those of other tests may have ended


def test_processes_of_episodes_end() -> None:
    world = SmallWorld()
    collect = Collector(world, ProcessWorld(), recipes.GRPO, task_pool=16, processes=2)
    collect(tasks=2, group_size=2)
    running = multiprocessing.active_children()
    assert running
    del collect
    gc.collect()
    for process in running:
        process.join(SECONDS)  # returns at once, without an exit code, if the finalizer's thread waits for it too
        until = time.monotonic() + SECONDS
        while Path(f"/proc/{process.pid}").exists():
            assert time.monotonic() < until
            time.sleep(0.01)


def test_threads_of_agents_end() -> None:
    before = threads("agentrl agents", "agentrl endpoint")
    collect, world = collector(tool_user)
    collect(tasks=2, group_size=2)
    assert len(threads("agentrl agents", "agentrl endpoint") - before) == 2
    del collect, world
    ended(before, "agentrl agents", "agentrl endpoint")


def test_a_closed_collector_can_be_used_again() -> None:
    collect = Collector(Threads(), Threads(), recipes.GRPO, task_pool=16)
    batch = collect(tasks=2, group_size=4)
    collect.close()
    assert collect.evaluate(tasks=2).samples.tolist() == [1, 1]
    assert batch.num_draws == 8


class OfThisFile(ProcessWorld):
    """An environment of a module that a process cannot import."""


def test_an_error_of_all_groups_names_one_task() -> None:
    world = SmallWorld()
    collect = Collector(world, OfThisFile(), recipes.GRPO, task_pool=16, processes=1)
    with pytest.raises(InvalidInputError, match="No module named") as raised:
        collect(tasks=4, group_size=2)
    assert str(raised.value).count("(task ") == 1
    collect.close()
