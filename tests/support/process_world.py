"""An environment with one-step episodes that run in processes."""

from __future__ import annotations

from agentrl_core import env


class Episode:
    observation = "begin"

    def step(self, action: str) -> env.StepResult:
        return env.StepResult(reward=float(len(action)), terminated=True)

    def state_key(self) -> bytes:
        return b""


class ProcessWorld:
    runs = "process"

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[env.Task]:
        return [env.Task(f"{split} {number}", "?", "one", None) for number in range(start, start + count)]

    def reset(self, task: env.Task, seed: int) -> Episode:
        del task, seed
        return Episode()
