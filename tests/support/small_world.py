"""An environment and engine in one, without a model: an action is three random tokens; a function answers it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from agentrl_core.engine import Request, Segment
from agentrl_core.env import StepFlag, StepResult, Task

END = 9
Answer = Callable[[Task, int, list[str]], Any]


def paying(task: Task, seed: int, actions: list[str]) -> StepResult:
    """Return the result of two turns with a tool between them; pays by the seed, so the draws of a group differ."""
    del task
    if len(actions) < 2:
        return StepResult("go on", flags=StepFlag.TOOL_RESULT)
    return StepResult(reward=float(seed % 2), terminated=True, success=bool(seed % 2))


class SmallWorld:
    """Tasks `train 0`, `train 1`, … of two domains; `answer(task, seed, actions)` returns the result of a step."""

    vocabulary_size = 10
    entropy_estimator = "exact"
    policy_version = 0

    def __init__(self, answer: Answer = paying, *, observation: object = "begin", state: object = None) -> None:
        self.answer = answer
        self.observation = observation
        self.state = state
        self.chat: Any = SimpleNamespace(
            prompt=lambda text: np.array([1, 2, len(text) % 9], np.int32),
            observation=lambda text: np.array([1, len(text) % 9], np.int32),
            decode=lambda tokens: " ".join(map(str, tokens)),
            stop_token_ids=(END,),
            end_of_turn=END,
        )

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Any]:
        numbers = range(start, start + count)
        return [Task(f"{split} {number}", "?", ("even", "odd")[number % 2], None) for number in numbers]

    def reset(self, task: Task, seed: int) -> Any:
        actions: list[str] = []

        def step(action: str) -> Any:
            actions.append(action)
            return self.answer(task, seed, actions)

        def state_key() -> Any:
            return f"{task.task_id} {len(actions)}".encode() if self.state is None else self.state

        return SimpleNamespace(observation=self.observation, step=step, state_key=state_key)

    async def generate(self, request: Request) -> Segment:
        rng = np.random.default_rng(request.seed)
        tokens = np.append(rng.integers(2, 8, 3), END).astype(np.int32)
        numbers = rng.random(4, np.float32)
        return Segment(tokens, -numbers, numbers, "stop", self.policy_version, request.seed)

    def abort(self, request: Request) -> None:
        """Generation is immediate, so there is nothing to abort."""

    def update_weights(self, _model: object, version: int) -> None:
        self.policy_version = version
