"""Chained calls of a calculator: each call needs the result of the last one."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from teachable import FACTS, Turns, checked

from agentrl_core import env

NUMBERS = 20
OPERATIONS = ("plus", "minus", "times")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
_OTHER_WORDS = "start answer what result next"


def worked_out(left: int, operation: str, right: int) -> int:
    """Return the result modulo 20, so that each number is one token."""
    value = {"plus": left + right, "minus": left - right, "times": left * right}[operation]
    return value % NUMBERS


class Chain:
    """Chains of 3 to 5 operations on numbers below 20, each worked out by a call such as `7 times 3`.

    The calculator answers each call with its result and the position of the next operation. `answer` and a number end
    the episode; the reward is 1 for the chain's result. Calls may be wrong: the calculator does not check them against
    the chain.

    Args:
        held_out: number of held-out chains; there are 100 000 for training.
        lengths: the shortest and the longest chain.
    """

    runs: ClassVar = "inline"
    facts: ClassVar = FACTS
    words: ClassVar = (*map(str, range(NUMBERS)), *OPERATIONS, *_ORDINALS, *_OTHER_WORDS.split())

    def __init__(self, *, held_out: int = 256, lengths: tuple[int, int] = (3, 5)) -> None:
        self._lengths = lengths
        self._limits = {"train": 100_000, "held_out": held_out}

    def tasks(self, count: int, *, split: env.base.Split = "train", start: int = 0) -> list[env.Task]:
        """Return chains of a split, each made of its number."""
        return [self._task(split, number) for number in checked(start, count, self._limits[split])]

    def _task(self, split: str, number: int) -> env.Task:
        rng = random.Random(f"{split} {number}")  # noqa: S311 -- a task, no secret
        length = rng.randint(*self._lengths)
        parts = [[rng.choice(OPERATIONS), rng.randrange(2, NUMBERS)] for _ in range(length)]
        payload = {"start": rng.randrange(NUMBERS), "parts": parts}
        return env.Task(f"chain/{split}/{number}", "Work out the chain.", f"chain{length}", payload)

    def reset(self, task: env.Task, seed: int) -> Calls:
        """Start a chain."""
        del seed
        payload: Any = task.payload
        return Calls(payload["start"], [(operation, right) for operation, right in payload["parts"]])


class Calls(Turns):
    """One chain."""

    def __init__(self, start: int, parts: list[tuple[str, int]]) -> None:
        super().__init__(len(parts) + 3)
        self._parts, self._value, self._calls = parts, start, 0
        self._result = start
        for operation, right in parts:
            self._result = worked_out(self._result, operation, right)
        listed = " ".join(f"{_ORDINALS[at]} {name} {right}" for at, (name, right) in enumerate(parts))
        self.observation = f"start {start} {listed} {_ORDINALS[len(parts)]} answer next first"

    def step(self, action: str) -> env.StepResult:
        """Answer a call, or score the answer."""
        words = action.split()
        if len(words) == 2 and words[0] == "answer" and words[1].isdigit():
            return self.ended(success=int(words[1]) == self._result)
        if len(words) == 3 and words[0].isdigit() and words[1] in OPERATIONS and words[2].isdigit():
            self._value = worked_out(int(words[0]), words[1], int(words[2]))
            self._calls = min(self._calls + 1, len(self._parts))
            return self.answered(f"result {self._value} next {_ORDINALS[self._calls]}", env.StepFlag.TOOL_RESULT)
        return self.refused(f"what next {_ORDINALS[self._calls]}")

    def state_key(self) -> bytes:
        """Return the chain, the last result and the position."""
        return f"{self._parts} {self._value} {self._calls}".encode()

    def best(self) -> str:
        """Return the next call, or the answer."""
        if self._calls == len(self._parts):
            return f"answer {self._value}"
        operation, right = self._parts[self._calls]
        return f"{self._value} {operation} {right}"

    def slip(self, rng: random.Random) -> str:
        """Return the call with another number or operation, or an answer that comes too early."""
        operation, right = self._parts[min(self._calls, len(self._parts) - 1)]
        other, _ = rng.choice(self._parts)
        return rng.choice(
            (
                f"{self._value} {operation} {rng.randrange(NUMBERS)}",
                f"{rng.randrange(NUMBERS)} {operation} {right}",
                f"{self._value} {rng.choice(OPERATIONS)} {right}",
                f"{self._value} {other} {rng.choice(self._parts)[1]}",
                f"answer {self._value}",
            )
        )
