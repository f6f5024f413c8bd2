"""Name the largest of some numbers: a task of one turn, for a pretrained model."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from teachable import FACTS, Turns, checked

from agentrl_core import env

_SHOWN = (
    {"role": "system", "content": "Say the largest number."},
    {"role": "user", "content": "13 45 32"},
    {"role": "assistant", "content": "45"},
)
_TASKS = 100_000
_NUMBERS = range(10, 100)


class Largest:
    """Chats that end with numbers such as `53 18 91`, after one example.

    The answer is a number alone; the reward is 1 for the largest.

    Args:
        count: how many numbers.
        held_out: number of held-out tasks; there are 100 000 for training.
    """

    runs: ClassVar = "inline"
    facts: ClassVar = FACTS
    words: ClassVar = tuple(map(str, _NUMBERS))

    def __init__(self, *, count: int = 3, held_out: int = 256) -> None:
        self._count = count
        self._limits = {"train": _TASKS, "held_out": held_out}

    def tasks(self, count: int, *, split: env.base.Split = "train", start: int = 0) -> list[env.Task]:
        """Return tasks of a split, each made of its number."""
        return [self._task(split, number) for number in checked(start, count, self._limits[split])]

    def _task(self, split: str, number: int) -> env.Task:
        numbers = random.Random(f"{split} {number}").sample(_NUMBERS, self._count)  # noqa: S311 -- a task, no secret
        return env.Task(f"largest/{split}/{number}", "Say the largest number.", "largest", {"numbers": numbers})

    def reset(self, task: env.Task, seed: int) -> Numbers:
        """Start a task."""
        del seed
        payload: Any = task.payload
        return Numbers(payload["numbers"])


class Numbers(Turns):
    """One task."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(1)
        self._numbers = numbers
        self.observation = [*_SHOWN, {"role": "user", "content": " ".join(map(str, numbers))}]

    def step(self, action: str) -> env.StepResult:
        """Score the answer."""
        answer = action.strip()
        if not answer.isdigit():
            return self.refused("")
        return self.ended(success=int(answer) == max(self._numbers))

    def state_key(self) -> bytes:
        """Return the numbers."""
        return str(self._numbers).encode()

    def best(self) -> str:
        """Return the largest number."""
        return str(max(self._numbers))

    def slip(self, rng: random.Random) -> str:
        """Return one of the numbers."""
        return str(rng.choice(self._numbers))
