"""The share of long episodes in training equals that of the tasks, with prefetch and interruptions."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import SmallWorld

from agentrl_core import Batch, Collector, Store, recipes
from agentrl_core.engine import Request, Segment
from agentrl_core.env import StepResult, Task

LONG = 8
"""Most groups have episodes of one turn; one group in *n* has longer ones."""
ITERATIONS = 12


class Slow(SmallWorld):
    """Every turn takes equally long, so that long episodes end late."""

    def __init__(self, seconds: float) -> None:
        super().__init__(self._answered)
        self.seconds = seconds

    @staticmethod
    def turns(task: str) -> int:
        return LONG if int(task.rsplit(maxsplit=1)[-1]) % LONG == 0 else 1

    def _answered(self, task: Task, seed: int, actions: list[str]) -> Any:
        if len(actions) < self.turns(task.task_id):
            return StepResult("go on")
        return StepResult(reward=float(seed % 2), terminated=True, success=True)

    async def generate(self, request: Request) -> Segment:
        await asyncio.sleep(self.seconds)
        return await super().generate(request)


def lengths(batches: list[Batch]) -> Counter[int]:
    """Return the number of draws with *n* turns."""
    return Counter(Slow.turns(task) for batch in batches for task in batch.texts("task_id", "draw"))


def trained(staleness: int, seconds: float, store: Store | None = None, until: int = ITERATIONS) -> list[Batch]:
    world = Slow(seconds)
    collect = Collector(world, world, recipes.GRPO, seed=9, task_pool=64, staleness=staleness, store=store)
    batches = []
    while collect.iteration < until:
        batches.append(collect(tasks=8, group_size=2))
        collect.end_iteration(batches[-1], {})
    # Work in flight is interrupted, and the next call starts like a new process.
    collect.close()
    return batches


@pytest.mark.parametrize("staleness", [1, 4])
def test_lengths_are_distributed_as_without_staleness(staleness: int) -> None:
    """The share of long episodes is that of the selected tasks, iteration by iteration, and so near 1 / 8."""
    alone, ahead = trained(0, 0.0), trained(staleness, 0.001)
    assert [lengths([batch]) for batch in alone] == [lengths([batch]) for batch in ahead]
    length_counts = lengths(ahead)
    expected = length_counts.total() / LONG
    # 96 groups of two: three standard deviations of the number of long ones, drawn with probability 1 / 8.
    assert abs(length_counts[LONG] - expected) <= 3 * 2 * np.sqrt(96 / LONG * (1 - 1 / LONG))
    assert length_counts[LONG] > 0


def test_a_restart_prefers_no_short_episode(tmp_path: Path) -> None:
    """Interrupted after each iteration, amid the long episodes of the next ones (NeMo-RL#3599)."""
    expected = trained(3, 0.0)
    batches: list[Batch] = []
    for iteration in range(ITERATIONS):
        with Store.open(tmp_path, sync="never") as store:
            batches += trained(3, 0.001, store, until=iteration + 1)
    assert len(batches) == ITERATIONS
    assert [lengths([batch]) for batch in batches] == [lengths([batch]) for batch in expected]
    tokens = [batch.column("token", "token").tolist() for batch in batches]
    assert tokens == [batch.column("token", "token").tolist() for batch in expected]
