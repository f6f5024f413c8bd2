"""The environment of `fsdp2.py`, `ddp_accelerate.py` and `collectors.py`."""

from __future__ import annotations

from agentrl_core import env


class Vowels:
    """An environment of one turn: the reward is the share of vowels in the answer."""

    runs = "inline"

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[env.Task]:
        """Return some questions."""
        return [env.Task(f"{split}/{n}", f"Write vowels, {n}.", "vowels", {}) for n in range(start, start + count)]

    def reset(self, task: env.Task, seed: int) -> Question:  # noqa: ARG002 - there is no chance in it
        """Start an episode with a question."""
        return Question(task.question)


class Question:
    """A question and its one answer."""

    def __init__(self, observation: str) -> None:
        self.observation = observation

    def step(self, action: str) -> env.StepResult:
        """Score the answer."""
        return env.StepResult(reward=sum(map(action.count, "aeiou")) / max(len(action), 1), terminated=True)

    def state_key(self) -> bytes:
        """Return the only state."""
        return b""
