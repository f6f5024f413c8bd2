"""Processes that roll out for a collector through pipes; each has its own engine and environment."""

from __future__ import annotations

import multiprocessing as mp
from multiprocessing.connection import Connection
from typing import Any

from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import Batch, recipes

CONTEXT = mp.get_context("spawn")


def serve(pipe: Connection, recipe: str) -> None:
    """Roll out incoming orders with weights of the version that comes with each."""
    world = SmallWorld()
    collector = arl.Collector(world, world, recipes.get(recipe))
    while True:
        version, order = pipe.recv()
        world.update_weights(None, version)
        pipe.send(collector.roll_out(order))


class WorkerProcess:
    """A process, and the function that sends it orders."""

    def __init__(self, recipe: str) -> None:
        self.pipe, there = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=serve, args=(there, recipe), daemon=True)
        self.process.start()
        there.close()
        self.version = 0
        self.orders = 0

    def __call__(self, order: Any) -> Batch:
        self.orders += 1
        self.pipe.send((self.version, order))
        batch: Batch = self.pipe.recv()
        return batch

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        self.kill()
        self.pipe.close()
