"""What runs in actors of a Ray cluster, in processes that know no test."""

from __future__ import annotations

import asyncio

import numpy as np
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Request, Segment


class Slow(SmallWorld):
    """Takes its time, unless it is aborted."""

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


class Holder:
    """A collector in an actor, with its store."""

    def __init__(self, folder: str) -> None:
        self.store = arl.Store.open(folder)
        world = SmallWorld()
        self.collect = arl.Collector(world, world, recipes.GRPO, store=self.store, task_pool=8)

    def batch(self) -> arl.Batch:
        """The batch of this iteration."""
        return self.collect(tasks=2, group_size=2)

    def update(self, batch: arl.Batch) -> int:
        """Close the iteration; the next one."""
        self.collect.update(batch, {})
        return self.collect.iteration
