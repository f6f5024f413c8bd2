"""An environment whose episodes fail a given number of times; it can be pickled, so it runs anywhere."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_core.env import ExtraColumn, StepFlag, StepResult, Task

TURNS = 3


class OddError(Exception):
    """An object that can be pickled but not unpickled."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


@dataclass
class FailingWorld:
    """Tasks named after the way they fail: `fine`, or `<how> <times>`, such as `raise 1` or `die 9`.

    `closehang` hangs while it is closed. `unreadable` raises an error that no other process can unpickle; `unsendable`
    has a state that cannot be pickled.

    Args:
        folder: folder for counts of failures, over all processes.
        hows: the tasks.
        runs: where episodes run.
        seconds: duration of a step.
        hang: duration of a step that hangs.
        patience: how long a failing step is retried.
    """

    folder: str
    hows: tuple[str, ...]
    runs: str = "thread"
    seconds: float = 0.0
    hang: float = 60.0
    replayable: bool = True
    patience: float = 0.0
    facts = {"turns": ExtraColumn("trajectory"), "turn": ExtraColumn("step")}  # noqa: RUF012 -- as an author would write it

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        del split
        hows = [self.hows[number % len(self.hows)] for number in range(start, start + count)]
        return [Task(f"{how} #{number}", how, how.split()[0], None) for number, how in enumerate(hows, start=start)]

    def reset(self, task: Task, seed: int) -> FailingEpisode:
        episode = FailingEpisode(self, task, seed)
        episode.fail("reset")
        return episode

    def count(self, task: Task, what: str) -> int:
        """Count this for a task, and return the count."""
        with (Path(self.folder) / f"{task.task_id} {what}".replace("/", "_")).open("a") as file:
            file.write("x")
            return file.tell()


class FailingEpisode:
    """An episode of three turns; the second fails if the task requires it."""

    def __init__(self, world: FailingWorld, task: Task, seed: int) -> None:
        self.world, self.task, self.seed = world, task, seed
        self.observation = f"begin {task.task_id}"
        self.turns = 0
        self.closed = False

    def fail(self, where: str) -> None:
        """Fail, if the task requires it and has not failed often enough."""
        how, _, times = self.task.question.partition(" ")
        place = "reset" if how.startswith("reset") else "step"
        if not times or place != where or self.world.count(self.task, "failures") > int(times):
            return
        if how.endswith("raise"):
            raise OSError("the server is down")
        if how.endswith("hang"):
            time.sleep(self.world.hang)
        if how.endswith("die"):
            os._exit(7)
        if how == "hog":
            self.held = bytearray(1 << 30)
        if how == "hungry":
            self.held = np.zeros(1 << 28, np.float64)
        if how == "unreadable":
            raise OddError(1, 2)

    def step(self, action: str) -> StepResult:
        if self.world.seconds:
            time.sleep(self.world.seconds)
        self.turns += 1
        if self.turns == 2:
            self.fail("step")
        if self.task.question == "fail":
            return StepResult(
                "no such action",
                flags=StepFlag.TOOL_RESULT | StepFlag.TOOL_ERROR,
                reward=0.0,
                terminated=self.turns == TURNS,
            )
        facts: dict[str, Any] = {"turn": self.turns, "turns": self.turns}
        if self.turns < TURNS:
            return StepResult(f"after {action}", reward=0.5, flags=StepFlag.TOOL_RESULT, facts=facts)
        self.world.count(self.task, "ends")
        return StepResult(reward=1.0, terminated=True, success=self.seed % 2 == 0, facts=facts)

    def state_key(self) -> bytes:
        if self.task.question.startswith("unsendable"):
            return threading.Lock()  # type: ignore[return-value]
        return f"{self.task.task_id} {self.turns}".encode()

    def close(self) -> None:
        assert not self.closed, "it is closed once"
        self.closed = True
        how, _, times = self.task.question.partition(" ")
        if self.world.count(self.task, "closed") <= int(times or 0) and how == "closehang":
            time.sleep(self.world.hang)
