"""A world of places and doors, and an engine that samples by a table: searches in it can be traced by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from agentrl_core.engine import Request, Segment
from agentrl_core.engine.base import TopLogprobs
from agentrl_core.env import StepFlag, StepResult, Task

END = 9
BEGIN = "a"


class Maze:
    """Actions are single tokens; `doors[place][token]` is the place that it leads to, or the reward of an end.

    `choose(seed, place, number)` returns the engine's token in a place for its n-th request there, and its log-prob. A
    request for the likeliest tokens returns `likely[place]`.
    """

    vocabulary_size, entropy_estimator, policy_version, shares_parameters = 64, "exact", 0, False
    runs = "inline"  # so that requests come in the order of the branches

    def __init__(
        self,
        doors: Mapping[str, Mapping[int, str | float]],
        choose: Callable[[int, str, int], tuple[int, float]],
    ) -> None:
        self.doors = doors
        self.choose = choose
        self.request_counts: dict[str, int] = {}
        self.places = {place: 20 + number for number, place in enumerate(sorted(doors))}
        """Return the token of an observation."""
        self.chat: Any = SimpleNamespace(
            prompt=lambda text: np.array([1, self.places[text]], np.int32),
            observation=lambda text: np.array([2, self.places[text]], np.int32),
            decode=lambda tokens: " ".join(str(token) for token in tokens.tolist() if token != END),
            action=lambda text: np.array([*map(int, text.split()), END], np.int32),
            stop_token_ids=(END,),
            end_of_turn=END,
        )

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        return [Task(f"{split} {number}", "?", "mazes", None) for number in range(start, start + count)]

    def reset(self, task: Task, seed: int) -> Any:
        del task, seed
        here = [BEGIN]

        def step(action: str) -> StepResult:
            there = self.doors[here[0]][int(action.rsplit(maxsplit=1)[-1])]
            if isinstance(there, str):
                here[0] = there
                return StepResult(there, flags=StepFlag.TOOL_RESULT)
            return StepResult(reward=there, terminated=True, success=there > 0)

        return SimpleNamespace(observation=BEGIN, step=step, state_key=lambda: here[0].encode())  # noqa: PLW0108 -- the place changes

    async def generate(self, request: Request) -> Segment:
        names = {token: place for place, token in self.places.items()}
        place = names[int(request.tokens[-1])]
        number = self.request_counts.get(place, 0)
        self.request_counts[place] = number + 1
        token, logprob = self.choose(request.seed, place, number)
        logprobs = np.array([logprob, 0.0], np.float32)
        return Segment(np.array([token, END], np.int32), logprobs, -logprobs, "stop", self.policy_version, request.seed)

    def update_weights(self, _model: object, version: int) -> None:
        self.policy_version = version


def in_turn(table: Mapping[str, Sequence[tuple[int, float]]]) -> Callable[[int, str, int], tuple[int, float]]:
    """Return the entries of a place one after the other, whatever the seed; raise an error after the last one."""
    return lambda _, place, number: table[place][number]


class Babbler:
    """An engine that samples token by token from a table of the previous tokens, and returns the likeliest candidates.

    `table(sampled)` returns the candidates with their probabilities, the likeliest first. Temperature 0 samples the
    first; otherwise the seed decides.
    """

    vocabulary_size, entropy_estimator, policy_version, shares_parameters = 64, "exact", 0, False

    def __init__(self, table: Callable[[tuple[int, ...]], Sequence[tuple[int, float]]]) -> None:
        self.table = table
        self.chat: Any = SimpleNamespace(
            prompt=lambda text: np.array([1, 3], np.int32),  # noqa: ARG005
            observation=lambda text: np.array([2, 3], np.int32),  # noqa: ARG005
            decode=lambda tokens: " ".join(str(token) for token in tokens.tolist() if token != END),
            stop_token_ids=(END,),
            end_of_turn=END,
        )

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        return [Task(f"{split} {number}", "?", "words", None) for number in range(start, start + count)]

    def reset(self, task: Task, seed: int) -> Any:
        del task, seed
        return SimpleNamespace(
            observation="?",
            step=lambda action: StepResult(
                reward=float(len(action) % 2), terminated=True, success=len(action) % 2 == 1
            ),
            state_key=lambda: b"begin",
        )

    async def generate(self, request: Request) -> Segment:
        sampling, rng = request.sampling, np.random.default_rng(request.seed)
        sampled: list[int] = []
        numbers: list[float] = []
        top: list[list[tuple[int, float]]] = []
        while len(sampled) < sampling.max_tokens and (not sampled or sampled[-1] != END):
            candidates = list(self.table((*request.tokens[2:].tolist(), *sampled)))
            weights = np.array([probability for _, probability in candidates])
            row = 0 if sampling.temperature == 0 else int(rng.choice(len(weights), p=weights / weights.sum()))
            sampled.append(candidates[row][0])
            numbers.append(0.0 if sampling.temperature == 0 else float(np.log(weights[row] / weights.sum())))
            filled = candidates + [(0, 1e-30)] * sampling.top
            top.append(filled[: sampling.top])
        likely = None
        if sampling.top:
            likely = TopLogprobs(
                np.array([[token for token, _ in row] for row in top], np.int32),
                np.log(np.array([[probability for _, probability in row] for row in top])).astype(np.float32),
            )
        logprobs = np.array(numbers, np.float32)
        finish: Any = "stop" if sampled[-1] == END else "length"
        return Segment(np.array(sampled, np.int32), logprobs, -logprobs, finish, 0, request.seed, likely)

    def update_weights(self, _model: object, version: int) -> None:
        self.policy_version = version
