"""A game of two players and a referee: the players act at the same time; the referee sees both, and they see it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from agentrl_core.engine import Request, Segment
from agentrl_core.env import Message, StepResult, Task

END = 9
BEGIN = {"one": "you are 1", "two": "you are 2", "referee": "you are 7"}


def digits(content: Any) -> list[int]:
    """Return the tokens of a text or of messages: their digits."""
    texts = [content] if isinstance(content, str) else [message["content"] for message in content]
    return [int(letter) for text in texts for letter in text if letter.isdigit()]


class NumberEngine:
    """An engine that samples numbers, given or random; `contexts` holds those of its requests."""

    vocabulary_size, entropy_estimator, policy_version = 10, "exact", 0

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers
        self.contexts: list[list[int]] = []
        self.chat = SimpleNamespace(
            prompt=lambda content: np.array([1, *digits(content)], np.int32),
            observation=lambda content: np.array([1, *digits(content)], np.int32),
            action=lambda text: np.array([*digits(text), END], np.int32),
            decode=lambda tokens: " ".join(str(token) for token in tokens if token != END),
            stop_token_ids=(END,),
            end_of_turn=END,
        )

    async def generate(self, request: Request) -> Segment:
        self.contexts.append(request.tokens.tolist())
        rng = np.random.default_rng(request.seed)
        numbers = self.numbers or rng.integers(1, 8, 2).tolist()
        logprobs = -rng.random(len(numbers) + 1, np.float32)
        return Segment(np.array([*numbers, END], np.int32), logprobs, -logprobs, "stop", 0, request.seed)

    def update_weights(self, _model: object, version: int) -> None:
        self.policy_version = version


class Game:
    """An environment of `rounds` rounds; the player with the larger last number wins what the other loses."""

    def __init__(self, rounds: int, *, fails_at: int = 0) -> None:
        self.rounds = rounds
        self.fails_at = fails_at
        self.log: list[dict[str, str]] = []

    @property
    def observations(self) -> Mapping[str, str | Message]:
        return BEGIN

    def turn_of(self) -> tuple[str, ...]:
        if len(self.log) == 2 * self.rounds:
            return ()
        return ("referee",) if len(self.log) % 2 else ("one", "two")

    def step(self, actions: Mapping[str, str]) -> dict[str, StepResult]:
        assert set(actions) == set(self.turn_of())
        self.log.append(dict(actions))
        if len(self.log) == self.fails_at:
            raise RuntimeError("the lights went out")
        if "referee" not in actions:
            observation = f"{actions['one']} and {actions['two']}"
            return {"one": StepResult(reward=0.25), "two": StepResult(), "referee": StepResult(observation)}
        if self.turn_of():
            return {name: StepResult(actions["referee"]) for name in ("one", "two")} | {"referee": StepResult()}
        last = self.log[-2]
        won = digits(last["one"])[-1] > digits(last["two"])[-1]
        sign = 1.0 if won else -1.0
        return {
            "one": StepResult(reward=sign, terminated=True, success=won),
            "two": StepResult(reward=-sign, terminated=True, success=not won),
            "referee": StepResult(reward=0.5, terminated=True, success=True),
        }

    def state_key(self) -> bytes:
        return repr(self.log).encode()


class GameWorld:
    """Tasks `game 0`, `game 1`, …"""

    def __init__(self, rounds: int = 2, *, fails_at: int = 0, runs: str = "thread") -> None:
        self.rounds = rounds
        self.fails_at = fails_at
        self.runs = runs
        self.games: list[Game] = []

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        return [Task(f"{split} game {number}", "?", "games", None) for number in range(start, start + count)]

    def reset(self, task: Task, seed: int) -> Game:
        del task, seed
        self.games.append(Game(self.rounds, fails_at=self.fails_at))
        return self.games[-1]
