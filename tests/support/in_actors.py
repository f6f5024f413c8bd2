"""Classes that run in actors of a Ray cluster, in processes that import no test."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import numpy as np
from failing_world import FailingWorld
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Request, Segment
from agentrl_core.env import Task


class Slow(SmallWorld):
    """An engine that takes its time, unless it is aborted."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.aborted: dict[Request, asyncio.Event] = {}

    async def generate(self, request: Request) -> Segment:
        event = self.aborted[request] = asyncio.Event()
        try:
            await asyncio.wait_for(event.wait(), self.seconds)
        except TimeoutError:
            return await super().generate(request)
        tokens = np.array([3], np.int32)
        return Segment(tokens, -np.ones(1, np.float32), np.ones(1, np.float32), "abort", 0, request.seed)

    def abort(self, request: Request) -> None:
        self.aborted[request].set()

    def close(self) -> None:
        pass


class Waiting(FailingWorld):
    """An environment that writes the process of each waiting episode to its folder; a file there releases them all."""

    def count(self, task: Task, what: str) -> int:
        count = super().count(task, what)
        go_on = Path(self.folder) / "go on"
        if what == "ends" and not go_on.exists():
            (Path(self.folder) / f"{task.task_id} in process {os.getpid()}").touch()
            while not go_on.exists():
                time.sleep(0.01)
        return count


class Holder:
    """A collector in an actor, with its store."""

    def __init__(self, folder: str) -> None:
        self.store = arl.Store.open(folder)
        world = SmallWorld()
        self.collect = arl.Collector(world, world, recipes.GRPO, store=self.store, task_pool=8)

    def batch(self) -> arl.Batch:
        """Return the batch of this iteration."""
        return self.collect(tasks=2, group_size=2)

    def update(self, batch: arl.Batch) -> int:
        """Close the iteration and open the next one."""
        self.collect.end_iteration(batch, {})
        return self.collect.iteration
