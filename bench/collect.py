"""Overhead of collection: the cost of a turn with instant engines and environments, and waiting in parallel.

    python bench/collect.py [--episodes 10 100 1000 10000] [--turns 10] [--runs 3]

1. Overhead: an engine that answers at once with 16 tokens, and an environment that answers at once with a short text,
inline, in threads and in processes. The figure is the time of `collect` per turn: rollout log in memory, forest, checks
and program. The peer is a lock-step loop (one engine call for all rows, then each environment in turn) that keeps the
same forest.
2. Waiting: 16 episodes of three steps of 0.1 s, by the same lock-step loop and by concurrent programs. Both batches
must be equal.
3. Waiting of random length: 64 episodes whose steps take 0 to 40 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.env import StepResult, Task

END = 99
CHAT = SimpleNamespace(
    prompt=lambda text: np.full(32, len(text) % 90, np.int32),
    observation=lambda text: np.full(8, len(text) % 90, np.int32),
    decode=lambda tokens: str(tokens[0]),
    stop_token_ids=(END,),
    end_of_turn=END,
)
SAMPLING = Sampling(max_tokens=16)


class Free:
    """An engine that answers at once."""

    chat, vocabulary_size, entropy_estimator, policy_version, shares_parameters = CHAT, 100, "exact", 0, False

    async def generate(self, request: Request) -> Segment:
        """Return sixteen tokens."""
        tokens = np.full(16, request.seed % 90, np.int32)
        tokens[-1] = END
        return Segment(tokens, np.full(16, -0.5, np.float32), np.ones(16, np.float32), "stop", 0, request.seed)


@dataclass
class World:
    """Episodes of `turns` turns, each of which takes `seconds`."""

    turns: int
    runs: str = "inline"
    least: float = 0.0
    most: float = 0.0

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        """Return tasks with numbers as ids."""
        del split
        return [Task(f"task {number}", "?", "bench", None) for number in range(start, start + count)]

    def reset(self, task: Task, seed: int) -> Episode:
        """Start an episode."""
        return Episode(self, task, seed)


class Episode:
    """An episode of `turns` turns of `seconds` each."""

    observation = "begin"

    def __init__(self, world: World, task: Task, seed: int) -> None:
        self.world, self.task, self.seed, self.taken = world, task, seed, 0

    def step(self, action: str) -> StepResult:
        """Wait, and answer."""
        del action
        self.taken += 1
        if self.world.most:
            share = (self.seed >> self.taken) % 1024 / 1023
            time.sleep(self.world.least + share * (self.world.most - self.world.least))
        if self.taken < self.world.turns:
            return StepResult("go on", reward=0.5)
        return StepResult(reward=float(self.seed % 2), terminated=True, success=bool(self.seed % 2))

    def state_key(self) -> bytes:
        """Return the number of the turn."""
        return self.taken.to_bytes(4, "little")


Timed = tuple[float, float, arl.Batch]
"""Wall seconds, CPU seconds of this process, and the result."""


def side_by_side(world: World, tasks: int, group_size: int) -> Timed:
    """Time `collect` after its threads and processes have started; the recipe only rewards."""
    recipe = arl.Recipe(name="bench")
    collect = arl.Collector(
        Free(), world, recipe, task_pool=tasks, sampling=SAMPLING, context_tokens=1 << 20, concurrency=1 << 20
    )
    collect.evaluate(tasks=1, samples=16)
    result = timed(collect, tasks=tasks, group_size=group_size)
    collect.close()
    return result


def lock_step(world: World, tasks: int, group_size: int) -> Timed:
    """Run one engine call for all rows, then each environment in turn."""
    return timed(_lock_step, world, tasks, group_size)


def _lock_step(world: World, tasks: int, group_size: int) -> arl.Batch:
    pool = world.tasks(tasks)
    order = recipes.GRPO.select.choose(tasks, 0, tasks, 0)
    forest = arl.Forest()
    rows: list[Any] = []
    for group, index in enumerate(order):
        forest.add_group(group, pool[index].task_id)
        for member in range(group_size):
            handle = forest.start(group, member)
            episode = world.reset(pool[index], forest.segment_seed(handle))
            forest.append(handle, CHAT.prompt(episode.observation), kind="prompt", state=episode.state_key())
            rows.append(SimpleNamespace(handle=handle, episode=episode, paid=0.0))
    engine = Free()

    async def generate(requests: Sequence[Request]) -> list[Segment]:
        return [await engine.generate(request) for request in requests]

    while rows:
        requests = [Request(forest.tokens(row.handle), forest.segment_seed(row.handle), SAMPLING) for row in rows]
        for row, segment in zip(rows, asyncio.run(generate(requests)), strict=True):
            forest.append(
                row.handle,
                segment.tokens,
                kind="action",
                logprobs=segment.logprobs,
                entropies=segment.entropies,
                policy_version=0,
                seed=segment.seed,
                temperature=1.0,
                finish_reason="stop",
            )
            outcome = row.episode.step(CHAT.decode(segment.tokens))
            row.paid += outcome.reward or 0.0
            forest.step(row.handle, reward=outcome.reward, terminated=outcome.terminated)
            if outcome.terminated:
                forest.finish(row.handle, reward=row.paid, success=bool(outcome.success))
            else:
                state = row.episode.state_key()
                forest.append(row.handle, CHAT.observation(outcome.observation), kind="observation", state=state)
            row.over = outcome.terminated
        rows = [row for row in rows if not row.over]
    return forest.freeze()


def timed(function: Any, *arguments: Any, **more: Any) -> Timed:
    """Return the duration of a call and its result."""
    gc.collect()
    begin, busy = time.perf_counter(), time.process_time()
    batch = function(*arguments, **more)
    return time.perf_counter() - begin, time.process_time() - busy, batch


def check_equal(first: arl.Batch, second: arl.Batch) -> None:
    """Check that both sides produced the same tables."""
    for name in ("nodes", "steps", "trajectories"):
        one, other = (pl.DataFrame(getattr(each, name)).drop("created_us", strict=False) for each in (first, second))
        assert one.equals(other, null_equal=True), name


def overhead(episodes: Sequence[int], turns: int, runs: int) -> None:
    """Print the table of overhead."""
    ways = ("lock-step", "inline", "thread", "process")
    print(f"overhead of a turn in microseconds (and on a processor), {turns} turns an episode, best of {runs}")
    print(f"{'episodes':>10} " + " ".join(f"{way:>13}" for way in ways) + f" {'resident MB':>12}")
    for count in episodes:
        group_size = min(count, 8)
        tasks = count // group_size
        line = f"{count:>10} "
        outputs = []
        for way in ways:
            function = lock_step if way == "lock-step" else side_by_side
            world = World(turns, "inline" if way == "lock-step" else way)
            results = [function(world, tasks, group_size) for _ in range(runs if count <= 1000 else 1)]
            each = 1e6 / (tasks * group_size * turns)
            wall, busy = (min(result[place] for result in results) * each for place in (0, 1))
            line += f"{wall:>6.0f} ({busy:>4.0f}) "
            outputs.append(results[0][2])
        for other in outputs[1:]:
            check_equal(outputs[0], other)
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{line}{resident:>12.0f}", flush=True)


def waiting(title: str, tasks: int, group_size: int, world: World) -> None:
    """Print the waiting time of both sides for the same work."""
    before, _, first = lock_step(world, tasks, group_size)
    world.runs = "thread"
    now, _, second = side_by_side(world, tasks, group_size)
    check_equal(first, second)
    print(f"{title}: lock-step {before:.2f} s, side by side {now:.2f} s: {before / now:.1f} x")


def main() -> None:
    """Run all three parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    waiting("16 episodes of 3 steps of 0.1 s", 2, 8, World(3, least=0.1, most=0.1))
    waiting("64 episodes of 5 steps of 0 to 40 ms", 8, 8, World(5, most=0.04))
    overhead(options.episodes, options.turns, options.runs)


if __name__ == "__main__":
    main()
