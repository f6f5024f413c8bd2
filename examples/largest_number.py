"""A first task for a pretrained model: name the largest of three numbers.

Run it, from the repository, with:

    PYTHONPATH=examples agentrl train --env largest_number:world --model FOLDER --turn-tokens 6 --learning-rate 2e-5
"""

from __future__ import annotations

import random

from agentrl_core import env

SHOWN = (
    {"role": "system", "content": "Say the largest number."},
    {"role": "user", "content": "13 45 32"},
    {"role": "assistant", "content": "45"},
)


def world() -> env.Environment:
    """Return the environment."""
    return LargestNumber()


class LargestNumber:
    """An environment with one turn: the reward is 1 if the answer is the largest number and nothing else."""

    runs = "inline"

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[env.Task]:
        """Return tasks, each with three different numbers of two digits."""
        return [self._task(split, number) for number in range(start, start + count)]

    def reset(self, task: env.Task, seed: int) -> Question:  # noqa: ARG002 - there is no chance in it
        """Ask the question of a task."""
        return Question(task)

    def _task(self, split: str, number: int) -> env.Task:
        three = random.Random(f"{split} {number}").sample(range(10, 100), 3)  # noqa: S311 - no secret
        return env.Task(f"{split}/{number}", " ".join(map(str, three)), "largest", str(max(three)))


class Question:
    """A question and its one answer."""

    def __init__(self, task: env.Task) -> None:
        self.observation = [*SHOWN, {"role": "user", "content": task.question}]
        self._task = task

    def step(self, action: str) -> env.StepResult:
        """Score the answer."""
        right = action.strip() == self._task.payload
        return env.StepResult(reward=float(right), terminated=True, success=right)

    def state_key(self) -> bytes:
        """Return the only state."""
        return self._task.question.encode()
