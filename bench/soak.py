"""A soak test: a thousand scripted episodes at once, with all kinds of failures, for a given time.

    python bench/soak.py [--minutes 30] [--episodes 1000] [--staleness 2] [--seed 0]

Engines and environments answer with a delay. Environments may also raise, or hang until their timeout. Programs stop
branches, new weights arrive in the middle of segments, and now and then the whole collection is cancelled and resumed
from the rollout log. Every episode is accounted for: each iteration has as many trajectories as requested, and each of
them is finished, failed or stopped. Memory is that of this process after each iteration and a garbage collection. It
is flat if a line through it, without the first third, grows by less than a twentieth over the run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import tempfile
import threading
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import Bench

import agentrl_core as arl
from agentrl_core import engine, env, recipes
from agentrl_core.data.table_codes import CODES
from agentrl_core.env import StepResult, Task
from agentrl_core.rollout import Branch, Rollout
from agentrl_core.train import warm_start

GROUP = 8
RAISES, HANGS, STOPS = 0.01, 0.0005, 0.05
"""Probabilities per turn; an exception is retried twice before the episode fails."""


@dataclass(frozen=True)
class Stopping(Rollout):
    """A program that stops a branch now and then, also while it is awaited."""

    async def branch(self, branch: Branch) -> None:
        """Play turns until the episode ends or is stopped."""
        while not branch.over:
            number = branch.group.uniform(branch.name, len(branch.turns))
            if number < STOPS / 2:
                asyncio.get_running_loop().call_later(0.002, lambda: branch.stop("a clock said so"))
            elif number < STOPS and branch.turns:
                branch.stop("the program said so")
                return
            await branch.turn()


class AtWork:
    """Number of current waits for an engine or an environment, and its maximum."""

    now = most = 0

    def __enter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        self.now -= 1


AT_WORK = AtWork()


class CountedEngine(engine.Scripted):
    """Count a wait."""

    async def generate(self, request: engine.Request) -> engine.Segment:
        """Generate one segment."""
        with AT_WORK:
            return await super().generate(request)


class World:
    """Episodes of one to eight turns, whose steps take some milliseconds, raise or hang."""

    runs = "inline"

    def __init__(self) -> None:
        self.chance = random.Random(0)  # noqa: S311
        self.raised = self.hung = 0

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        """Return tasks with numbers as ids."""
        return [Task(f"{split} {number}", "begin", "soak", None) for number in range(start, start + count)]

    def reset(self, task: Task, seed: int) -> Episode:
        """Start an episode."""
        return Episode(self, task, seed)


class Episode:
    """An episode of some turns."""

    observation = "begin"

    def __init__(self, world: World, task: Task, seed: int) -> None:
        self.world, self.task, self.seed, self.taken = world, task, seed, 0

    async def step(self, action: str) -> StepResult:
        """Wait, then answer, raise or hang."""
        del action
        with AT_WORK:
            return await self._stepped()

    async def _stepped(self) -> StepResult:
        chance = self.world.chance.random()
        if chance < HANGS:
            self.world.hung += 1
            await asyncio.Event().wait()
        if chance < HANGS + RAISES:
            self.world.raised += 1
            raise OSError("the network is down")
        await asyncio.sleep((self.seed >> self.taken) % 16 / 1000)
        self.taken += 1
        if self.taken <= self.seed % 8:
            return StepResult("go on")
        return StepResult(reward=float(self.seed % 2), terminated=True, success=bool(self.seed % 2))

    def state_key(self) -> bytes:
        """Return the number of the turn."""
        return self.taken.to_bytes(4, "little")


def resident() -> float:
    """Return the memory of this process in megabytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    """Run the soak; count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # the failures below are deliberate
    bench = Bench("soak")
    _, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"], seed=0), seed=0)
    scripted = CountedEngine(
        tokenizer, lambda request: str(request.seed % 1000), delay=lambda request: (request.seed >> 5) % 20 / 1000
    )
    world, rng = World(), random.Random(options.seed)  # noqa: S311
    groups = options.episodes // GROUP // 2
    statuses: Counter[str] = Counter()
    memory: list[float] = []
    given_up = updates = 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, arl.Store.open(folder, sync="never") as store:
        collect = arl.Collector(
            scripted,
            world,  # type: ignore[arg-type]
            recipes.GRPO.replace(rollout=Stopping()),
            store=store,
            seed=options.seed,
            staleness=options.staleness,
            concurrency=options.episodes,
            call_seconds=5.0,
        )
        while time.monotonic() - begin < 60 * options.minutes:
            if rng.random() < 0.2:
                # Interrupt at a random point, like Ctrl-C.
                timer = threading.Timer(rng.uniform(0.0, 0.2), collect.close)
                timer.start()
                timer.join()
                given_up += 1
            iteration = collect.iteration
            batch = collect(tasks=groups, group_size=GROUP)
            for status in batch.trajectories.column("status").tolist():
                statuses[CODES["status"][status]] += 1
            assert len(batch.trajectories) == groups * GROUP, f"iteration {iteration}: {len(batch.trajectories)}"
            updates += 1
            scripted.update_weights(None, version=updates)  # type: ignore[arg-type]
            collect.end_iteration(recipes.GRPO.credit(batch), {})
            if iteration % 20 == 19:
                store.drop_before(iteration - 10)
            memory.append(resident())
            minutes = (time.monotonic() - begin) / 60
            print(f"iteration {iteration}: {minutes:.1f} minutes, {memory[-1]:.0f} MB, {dict(statuses)}", flush=True)
        collect.close()
        assert store.verify() == []
        seconds, iterations = time.monotonic() - begin, collect.iteration
    assert statuses.total() == iterations * groups * GROUP, "every episode is accounted for"
    settled = np.array(memory[len(memory) // 3 :])
    slope = float(np.polyfit(np.arange(len(settled)), settled, 1)[0])
    growth = slope * len(settled) / float(settled.mean())
    line = {
        "minutes": seconds / 60,
        "iterations": iterations,
        "episodes": statuses.total(),
        "statuses": dict(statuses),
        "most_at_once": AT_WORK.most,
        "raised": world.raised,
        "hung": world.hung,
        "weight_updates": updates,
        "given_up_in_the_middle": given_up,
        "resident_megabytes": {"begin": memory[0], "third": float(settled[0]), "end": memory[-1]},
        "growth": growth,
    }
    bench.lines.append(line)
    for name, value in line.items():
        print(f"{name:>36}: {value}")
    bench.write()
    if growth >= 0.05:
        raise SystemExit(f"memory grows: {100 * growth:.1f} % over the settled part of the run")


if __name__ == "__main__":
    main()
