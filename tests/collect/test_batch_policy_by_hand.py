"""Tokens generated, consumed, stale, dropped and in flight equal those of a simulation by hand, cut by cut.

At each tick, an engine generates one token of each segment of one group; the groups take turns. The simulation is
`Paper`; the next tick comes when the run has reached its state.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from small_world import END, SmallWorld

from agentrl_core import Batch, Collector, recipes
from agentrl_core.collect import BatchPolicy
from agentrl_core.engine import Request, Segment
from agentrl_core.env import StepResult, Task

QUIET = 600.0
"""Seconds after which a wait fails."""
TURN = 4
"""Tokens of an action."""
SAID, LAST = 7, 8
"""Tokens that end no prompt; the second one starts the last turn."""
SIZE, TASKS, ITERATIONS = 2, 3, 8


def turns(began: int, place: int) -> int:
    """Turns of both trajectories of a group."""
    return (1, 2, 7)[(began + place * place + place // 3) % 3]


@dataclass
class Aloft:
    """A group in flight: its key, and tokens of a trajectory by version, in this iteration, and in batches."""

    began: int
    place: int
    generated: Counter[int] = field(default_factory=Counter)
    window: int = 0
    drawn: Counter[int] = field(default_factory=Counter)

    @property
    def over(self) -> bool:
        return self.generated.total() == TURN * turns(self.began, self.place)


class Paper:
    """Simulate the run tick by tick, in plain sums. An iteration's version is its number.

    Args:
        cut: when a batch is cut.
    """

    def __init__(self, cut: BatchPolicy) -> None:
        self.cut = cut
        self.aloft: list[Aloft] = []
        self.accounts: list[dict[str, int]] = []
        self.iteration = -1

    def begin(self) -> None:
        self.iteration += 1
        self.before = self.undrawn()
        missing = round(self.cut.oversample * TASKS) - len(self.aloft)
        self.aloft += [Aloft(self.iteration, place) for place in range(missing)]
        for group in self.aloft:
            group.window = 0
        self.ended = [group for group in self.aloft if group.over]
        self.generated = 0
        self.delivered = self.is_cut()

    def undrawn(self) -> int:
        return SIZE * sum((group.generated - group.drawn).total() for group in self.aloft)

    def waits(self, group: Aloft) -> bool:
        return not group.over and group.window != self.cut.max_new_tokens

    def say(self, group: Aloft) -> None:
        """Generate a token of each of its trajectories."""
        group.generated[self.iteration] += 1
        group.window += 1
        self.generated += SIZE
        if group.over:
            self.ended.append(group)
        self.delivered = self.is_cut()

    def is_cut(self) -> bool:
        """Cut the batch if it is due; return whether it was cut."""
        policy = self.cut
        due = [
            each
            for each in self.aloft
            if policy.max_carryovers is not None and self.iteration - each.began >= policy.max_carryovers
        ]
        if policy.max_new_tokens is not None:
            if any(map(self.waits, self.aloft)):
                return False
            batch, dropped = list(self.aloft), []
        else:
            if len(self.ended) < TASKS or (policy.stragglers == "wait" and not all(each.over for each in due)):
                return False
            batch = [each for each in self.ended if each in due]
            batch += [each for each in self.ended if each not in due][: max(TASKS - len(batch), 0)]
            batch = batch[:TASKS] if policy.stragglers == "drop" else batch
            dropped = [each for each in due if each not in batch] if policy.stragglers == "drop" else []
        new = Counter[int]()
        for group in batch:
            new += group.generated - group.drawn
            group.drawn = Counter(group.generated)
        removed = [each for each in batch if each.over] + dropped
        lost = SIZE * sum((each.generated - each.drawn).total() for each in dropped)
        self.aloft = [each for each in self.aloft if not any(each is other for other in removed)]
        account = {
            "generated": self.generated,
            "consumed": SIZE * new.total(),
            "stale": SIZE * sum(count for version, count in new.items() if version < self.iteration),
            "dropped": lost,
            "in_flight": self.undrawn(),
        }
        assert self.before + self.generated == account["consumed"] + lost + account["in_flight"]
        self.accounts.append(account)
        return True


class Clock(SmallWorld):
    """An engine that generates a token of one group at each tick, and ends the last turn with a different token."""

    runs = "inline"

    def __init__(self) -> None:
        super().__init__(self._answered)
        self.ticking: dict[Request, tuple[list[int], int, asyncio.Future[str]]] = {}
        self.loop: Any = None

    @staticmethod
    def _answered(task: Task, seed: int, actions: list[str]) -> StepResult:
        del task
        if str(LAST) not in actions[-1].split():
            return StepResult("go on")
        return StepResult(reward=float(seed % 2), terminated=True, success=True)

    async def generate(self, request: Request) -> Segment:
        version, sampled = self.policy_version, list[int]()
        prefix_length = int(np.argmax(request.tokens[::-1] < SAID))
        self.loop = asyncio.get_running_loop()
        over: asyncio.Future[str] = self.loop.create_future()
        length = min(TURN - prefix_length, request.sampling.max_tokens)
        self.ticking[request] = sampled, length, over
        try:
            reason = await over
        finally:
            del self.ticking[request]
        if reason == "stop" and prefix_length + length < TURN:
            reason = "length"
        elif reason == "stop":
            sampled[-1] = END
        if (
            len(sampled)
            and prefix_length == 0
            and np.sum(request.tokens == END) + 1 == turns(*map(int, request.group.split(".")))
        ):
            sampled[0] = LAST
        numbers = np.zeros(len(sampled), np.float32)
        return Segment(np.array(sampled, np.int32), numbers, numbers, reason, version, request.seed)  # type: ignore[arg-type]

    def waiting(self) -> Counter[str]:
        """Return how many trajectories of each group wait."""
        return Counter(str(request.group) for request, (*_, over) in list(self.ticking.items()) if not over.done())

    def tick(self, group: str) -> None:
        """Generate a token of each trajectory of a group; finished ones stop waiting."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(self._tick, group, done)
        assert done.wait(QUIET)

    def _tick(self, group: str, done: threading.Event) -> None:
        for request, (sampled, length, over) in list(self.ticking.items()):
            if request.group == group and not over.done():
                sampled.append(SAID)
                if len(sampled) == length:
                    over.set_result("stop")
        done.set()

    def abort(self, request: Request) -> None:
        *_, over = self.ticking.get(request, (None,))
        if over is not None and not over.done():
            over.set_result("abort")


@pytest.mark.parametrize(
    "cut",
    [
        BatchPolicy(oversample=2.0),
        BatchPolicy(oversample=2.0, max_carryovers=2),
        BatchPolicy(oversample=1.67, max_carryovers=1),
        BatchPolicy(oversample=2.0, max_carryovers=1, stragglers="drop"),
        BatchPolicy(oversample=1.34, max_carryovers=0, stragglers="drop"),
        BatchPolicy(max_new_tokens=5),
        BatchPolicy(oversample=1.67, max_new_tokens=3),
    ],
    ids=str,
)
def test_tokens_are_those_on_paper(cut: BatchPolicy) -> None:
    clock = Clock()
    collect = Collector(clock, clock, recipes.GRPO, seed=11, task_pool=60, batch_policy=cut)
    batches: list[Batch] = []
    accounts: list[dict[str, int]] = []
    stepped = threading.Semaphore(0)
    collect.on_iteration(lambda _, metrics: accounts.append(dict(metrics["tokens"])))

    def trains() -> None:
        for iteration in range(ITERATIONS):
            batches.append(collect(tasks=TASKS, group_size=SIZE))
            collect.end_iteration(batches[-1], {})
            clock.policy_version = iteration + 1
            stepped.acquire()

    paper = Paper(cut)
    trainer = threading.Thread(target=trains, daemon=True)

    def meet() -> None:
        limit = time.monotonic() + QUIET
        while True:
            waiting = 0 if paper.delivered else SIZE * sum(map(paper.waits, paper.aloft))
            if (clock.waiting().total(), len(accounts)) == (waiting, len(paper.accounts)):
                return
            assert trainer.is_alive(), "the run has failed"
            assert time.monotonic() < limit, "the run is where the paper is not"
            time.sleep(0.0005)

    paper.begin()
    trainer.start()
    for iteration in range(ITERATIONS):
        meet()
        while not paper.delivered:
            for group in list(paper.aloft):
                if paper.delivered or not paper.waits(group):
                    continue
                clock.tick(f"{group.began}.{group.place}")
                paper.say(group)
                meet()
        if iteration + 1 < ITERATIONS:
            paper.begin()
        stepped.release()
    trainer.join(QUIET)
    assert not trainer.is_alive()
    collect.close()
    assert [{name: each[name] for name in paper.accounts[0]} for each in accounts] == paper.accounts
    total = Counter[str]()
    for account in accounts:
        total.update(account)
    assert total["generated"] == total["consumed"] + total["dropped"] + accounts[-1]["in_flight"]
    assert total["consumed"] > 0
    assert (total["dropped"] > 0) == (cut.stragglers == "drop")
