"""An environment of sums: the engine samples numbers by seed, and an episode ends when their sum is large enough."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from agentrl_core.engine import Request, Segment
from agentrl_core.env import StepFlag, StepResult, Task


class Numbers:
    """An action is one to four random numbers, cut at the token limit; a chat of numbers."""

    policy_version, vocabulary_size, entropy_estimator = 3, 50, "exact"
    chat = SimpleNamespace(
        stop_token_ids=(49,),
        end_of_turn=49,
        prompt=lambda text: np.array([len(text), 1], np.int32),
        observation=lambda text: np.array([int(text) % 40], np.int32),
        decode=lambda tokens: " ".join(map(str, tokens.tolist())),
    )

    async def generate(self, request: Request) -> Segment:
        """Return the numbers of a seed."""
        seed, limit = request.seed, request.sampling.max_tokens
        rng = np.random.default_rng(seed)
        tokens = rng.integers(2, 49, int(rng.integers(1, 5))).astype(np.int32)
        logprobs, entropies = -rng.random(len(tokens)), 3 * rng.random(len(tokens))
        numbers = (logprobs.astype(np.float32)[:limit], entropies.astype(np.float32)[:limit])
        return Segment(tokens[:limit], *numbers, "stop" if len(tokens) < limit else "length", self.policy_version, seed)


class Sums:
    """An episode that ends when the sum is large enough; every other observation is from a tool."""

    observation = "0"

    def __init__(self) -> None:
        self.sum = 0
        self.turns = 0

    def step(self, action: str) -> StepResult:
        self.sum += sum(map(int, action.split()))
        self.turns += 1
        if self.sum > 250:
            return StepResult(reward=1.0, terminated=True, success=self.sum % 2 == 0, info={"sum": self.sum})
        flags = StepFlag.TOOL_RESULT if self.turns % 3 else 0
        return StepResult(str(self.sum), reward=0.25 if self.sum % 5 == 0 else None, flags=flags)

    def state_key(self) -> bytes:
        return str(self.sum).encode()


class SumWorld:
    """Tasks `sum 0`, `sum 1`, …"""

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        del split
        return [Task(f"sum {number}", "?", "sums", None) for number in range(start, start + count)]

    def reset(self, task: Task, seed: int) -> Sums:
        del task, seed
        return Sums()
