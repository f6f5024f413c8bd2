"""A collection that is killed repeatedly: `python resuming.py FOLDER KIND`.

For each line of standard input, a new process continues the run until all iterations are closed or it is killed. It
prints `process N` first; its parent prints `died N` with the signal that ended it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from small_world import SmallWorld

from agentrl_core import Collector, Store, recipes, rollout
from agentrl_core.collect.rollout_log import read_segment
from agentrl_core.engine import Request, Segment
from agentrl_core.env import StepFlag, StepResult, Task
from agentrl_core.rollout import Branch, Group
from agentrl_core.select import DynamicSampling

ITERATIONS = 3
DIGEST = 16
TABLES = ("nodes", "steps", "trajectories", "draws", "decisions", "tasks")


def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
    """Play three or more turns with two tools; pays and succeeds by the seed."""
    time.sleep(0.0005 * (len(actions[-1]) % 3))
    if len(actions) < 3 + seed % 2:
        return StepResult(f"{task.task_id} {len(actions)}", reward=0.25, flags=StepFlag.TOOL_RESULT)
    return StepResult(reward=float(seed % 5), terminated=True, success=seed % 5 == 0)


class ReportingWorld(SmallWorld):
    """An engine that reports a request whose response a rollout log already holds."""

    def __init__(self, folder: Path) -> None:
        super().__init__(answer)
        self.folder = folder
        self.seeds: set[int] = set()
        self.effects: set[str] = set()

    def learn(self, store: Store) -> None:
        """Read the recorded responses and effects from the next iteration's rollout log."""
        if store.has_batch(store.iteration):
            return
        for name, payload in store.rollout_log(store.iteration).records():
            if b"/segment" in name:
                self.seeds.add(read_segment(payload[DIGEST:]).seed)
            if b"/effect" in name:
                self.effects.add(name.decode().split("/")[0])

    async def generate(self, request: Request) -> Segment:
        if request.seed in self.seeds:
            self.complain(f"segment {request.seed}")
        await asyncio.sleep(0.0005 * (request.seed % 4))
        return await super().generate(request)

    def judge(self, group: str, text: str) -> float:
        if group in self.effects:
            self.complain(f"effect of {group}")
        self.write("effects", group)
        return float(len(text))

    def complain(self, what: str) -> None:
        self.write("complaints", what)

    def write(self, name: str, line: str) -> None:
        with (self.folder.parent / f"{self.folder.name}.{name}").open("a") as file:
            file.write(f"{line}\n")


WORLDS: list[ReportingWorld] = []
"""The one environment of the process, which the program uses."""


@dataclass(frozen=True)
class Search(rollout.Rollout):
    """A program with forks, a judge, rounds by score, and extra members in the order of their arrival."""

    async def branch(self, branch: Branch) -> None:
        for attempt in itertools.count():
            if branch.over:
                break
            turn = await branch.turn()
            if not turn.over and branch.uniform("again", attempt) < 0.2:
                branch.rollback(turn.begin)

    async def group(self, group: Group) -> None:
        live = group.start_many(2)
        turns = await group.turn(live)
        live += [turn.branch.fork(turn.begin) for turn in turns if turn.uniform() < 0.7]
        await group.run(live)
        verdict = await group.side_effect("judge", WORLDS[0].judge, group.name, live[0].text)
        scores = await group.score()
        if scores.std() == 0 or verdict % 2:
            async for branch in group.as_completed(group.start_many(2), order="given"):
                if branch.status == "failed":
                    break


def collector(folder: Path, store: Store) -> Collector:
    world = ReportingWorld(folder)
    world.learn(store)
    WORLDS[:] = [world]
    recipe = recipes.GRPO.replace(name="search", rollout=Search(), admit=DynamicSampling())
    return Collector(world, world, recipe, store=store, seed=11, task_pool=24)


def train(folder: Path, store: Store) -> None:
    """Continue until all iterations are closed."""
    while store.iteration < ITERATIONS:
        collect = collector(folder, store)
        batch = collect.recipe.credit(collect(tasks=3, group_size=2))
        collect.end_iteration(batch, {})


def outcome(store: Store) -> dict[str, Any]:
    """Return everything that a run stores, except creation times."""
    tables = {name: pl.DataFrame(getattr(store, name)).drop("created_us", strict=False).rows() for name in TABLES}
    return {**tables, "state": store.state}


def print_line(word: str, number: int) -> None:
    """Print a line to the parent and flush."""
    sys.stdout.write(f"{word} {number}\n")
    sys.stdout.flush()


def again(folder: Path, train: Callable[[Path, Store], None]) -> None:
    """Continue in a new process for each line, whatever happened to the one before."""
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            print_line("process", os.getpid())
            with Store.open(folder, sync="never") as store:
                train(folder, store)
            os._exit(0)
        print_line("died", -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    again(Path(sys.argv[1]), train)
