"""Tokens generated, used, stale and left over equal those of a simulation by hand, whatever the timing.

An engine generates one token of each segment at each tick of a clock; a trainer's step takes a given number of ticks.
The simulation is `Paper`; the clock ticks when the run has reached its state.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_world import END, SmallWorld

from agentrl_core import Batch, Collector, recipes
from agentrl_core.engine import Request, Segment
from agentrl_core.env import StepResult, Task

QUIET = 600.0
"""Seconds after which a wait fails."""
TURN = 4
"""Tokens of an action."""
SAID = 7
"""A token that ends no prompt."""
SIZE = 2
TASKS = 3
ITERATIONS = 7


class Paper:
    """Simulate the run tick by tick, in plain sums.

    Args:
        lengths: turns of each group of each iteration; both of its trajectories are equally long.
        staleness: how many iterations run ahead.
        room: most trajectories at once.
        step: ticks of a step of the trainer.
    """

    def __init__(self, lengths: Sequence[Sequence[int]], staleness: int, room: int, step: int) -> None:
        self.lengths, self.staleness, self.room, self.step = lengths, staleness, room, step
        self.version = self.current = self.delivered = self.requested = self.training = 0
        self.waits = {"trainer": 0, "engine": 0}
        self.queue: list[tuple[int, int]] = []
        """Iteration and turns of groups that wait for places."""
        self.running: list[list[int]] = []
        """Iteration, turns left and tokens of the current turn."""
        self.unfinished: Counter[int] = Counter()
        """Groups of an iteration that are not complete."""
        self.generated: Counter[tuple[int, int]] = Counter()
        """Tokens by iteration and version."""
        for iteration in range(staleness + 1):
            self.begin(iteration)

    def begin(self, iteration: int) -> None:
        self.queue += [(iteration, turns) for turns in self.lengths[iteration]]
        self.unfinished[iteration] = len(self.lengths[iteration])
        self.admit()

    def admit(self) -> None:
        while self.queue and (len(self.running) + 1) * SIZE <= self.room:
            iteration, turns = self.queue.pop(0)
            self.running.append([iteration, turns, 0])
            self.requested += SIZE

    def say(self) -> None:
        """Generate a token of each segment."""
        self.waits["engine"] += not self.running
        self.waits["trainer"] += not self.training
        for group in self.running:
            self.generated[group[0], self.version] += SIZE
            group[2] += 1
            if group[2] == TURN:
                group[1:] = [group[1] - 1, 0]
                self.requested += SIZE * (group[1] > 0)
                self.unfinished[group[0]] -= group[1] == 0
        self.running = [group for group in self.running if group[1]]
        self.admit()
        self.deliver()

    def train(self) -> None:
        """Advance the trainer by a tick."""
        if self.training:
            self.training -= 1
            if not self.training:
                # New weights end each segment, and the rest of it is requested again.
                self.version += 1
                self.requested += SIZE * len(self.running)
                self.current += 1
                if self.current < ITERATIONS:
                    self.begin(self.current + self.staleness)
        self.deliver()

    def deliver(self) -> None:
        """Give a complete batch to a waiting trainer."""
        if self.current < ITERATIONS and not self.training and not self.unfinished[self.current]:
            self.delivered += 1
            self.training = self.step


class Clock(SmallWorld):
    """Engine and environment in one: a token at each tick, and tasks that set their number of turns."""

    def __init__(self) -> None:
        super().__init__(self._answered)
        self.requested = 0
        self.ticking: dict[Request, tuple[list[int], int, asyncio.Future[str]]] = {}
        """Generated tokens of each segment, its length, and its waiting request."""
        self.loop: Any = None

    @staticmethod
    def turns(task: str) -> int:
        return (1, 2, 7)[int(task.rsplit(maxsplit=1)[-1]) % 3]

    def _answered(self, task: Task, seed: int, actions: list[str]) -> StepResult:
        if len(actions) < self.turns(task.task_id):
            return StepResult("go on")
        return StepResult(reward=float(seed % 2), terminated=True, success=True)

    async def generate(self, request: Request) -> Segment:
        version, sampled = self.policy_version, list[int]()
        prefix_length = int(np.argmax(request.tokens[::-1] != SAID))
        self.loop = asyncio.get_running_loop()
        over: asyncio.Future[str] = self.loop.create_future()
        self.ticking[request] = sampled, TURN - prefix_length, over
        self.requested += 1
        reason = await over
        del self.ticking[request]
        numbers = np.zeros(len(sampled), np.float32)
        return Segment(np.array(sampled, np.int32), numbers, numbers, reason, version, request.seed)  # type: ignore[arg-type]

    def tick(self) -> None:
        """Generate one more token of each segment."""
        self.loop.call_soon_threadsafe(self._tick)

    def _tick(self) -> None:
        for sampled, length, over in self.ticking.values():
            if over.done():
                continue
            sampled.append(SAID)
            if len(sampled) == length:
                sampled[-1] = END
                over.set_result("stop")

    def update_weights(self, _model: object, version: int) -> None:
        done = threading.Event()

        def end() -> None:
            for *_, over in self.ticking.values():
                if not over.done():
                    over.set_result("abort")
            self.policy_version = version
            done.set()

        self.loop.call_soon_threadsafe(end)
        assert done.wait(QUIET)


def of_versions(batch: Batch, iteration: int) -> Counter[tuple[int, int]]:
    """Return the sampled tokens of a batch, by iteration and version."""
    nodes = pl.DataFrame(batch.nodes).filter(pl.col("policy_version").is_not_null())
    counts: Counter[tuple[int, int]] = Counter()
    for version, tokens in zip(nodes["policy_version"].to_list(), nodes["tokens"].list.len().to_list(), strict=True):
        counts[iteration, version] += tokens
    return counts


def selected(count: int) -> list[list[int]]:
    """Return the turns of the selected groups in order, without staleness."""

    class Quick(SmallWorld):
        """The same tasks with one turn each, since the selection depends on no answer."""

    here = Quick(lambda _task, _seed, _actions: StepResult(reward=0.0, terminated=True))
    collect = Collector(here, here, recipes.GRPO, seed=11, task_pool=60)
    lengths = []
    for _ in range(count):
        batch = collect(tasks=TASKS, group_size=SIZE)
        collect.end_iteration(batch, {})
        tasks = dict(zip(batch.keys("group_id", "draw").tolist(), batch.texts("task_id", "draw"), strict=True))
        lengths.append([Clock.turns(tasks[group]) for group in sorted(tasks)])
    return lengths


@pytest.mark.parametrize(
    ("staleness", "room", "step"),
    [(1, 100, 1), (1, 100, 40), (2, 8, 3), (2, 100, 9), (4, 6, 20), (4, 100, 5), (4, 4, 1)],
)
def test_tokens_are_those_on_paper(staleness: int, room: int, step: int) -> None:
    lengths = selected(ITERATIONS + staleness)
    assert {1, 2, 7} == {turns for each in lengths for turns in each}
    paper, clock = Paper(lengths, staleness, room, step), Clock()
    options = {"staleness": staleness, "concurrency": room}
    collect = Collector(clock, clock, recipes.GRPO, seed=11, task_pool=60, **options)
    batches: list[Batch] = []
    stepped = threading.Semaphore(0)

    def trains() -> None:
        for iteration in range(ITERATIONS):
            batches.append(collect(tasks=TASKS, group_size=SIZE))
            stepped.acquire()
            clock.update_weights(None, iteration + 1)
            collect.end_iteration(batches[-1], {})

    trainer = threading.Thread(target=trains, daemon=True)
    trainer.start()

    def meet() -> None:
        limit = time.monotonic() + QUIET
        while (clock.requested, len(batches)) != (paper.requested, paper.delivered):
            assert time.monotonic() < limit, "the run is where the paper is not"
            time.sleep(0.0005)

    meet()
    while paper.current < ITERATIONS:
        paper.say()
        clock.tick()
        meet()
        before = paper.current
        paper.train()
        if paper.current > before:
            stepped.release()
        if paper.current < ITERATIONS:
            meet()
    trainer.join(QUIET)
    assert not trainer.is_alive()
    collect.close()

    used: Counter[tuple[int, int]] = Counter()
    for iteration, batch in enumerate(batches):
        used += of_versions(batch, iteration)
    on_paper = Counter({key: count for key, count in paper.generated.items() if key[0] < ITERATIONS})
    assert used == on_paper, "nothing of an iteration is discarded, and each token has the version on paper"
    assert used.total() == SIZE * TURN * sum(map(sum, lengths[:ITERATIONS]))
    stale = sum(count for (iteration, version), count in used.items() if version < iteration)
    assert 0 < stale < used.total()
    assert all(iteration - staleness <= version <= iteration for iteration, version in used)
    unused = paper.generated.total() - used.total()
    assert unused == sum(count for (iteration, _), count in paper.generated.items() if iteration >= ITERATIONS)
    # A trainer slower than the engine never waits after the first batch; a faster one waits.
    assert paper.waits["trainer"] > 0
