"""Read-only state of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrl_core.engine.base import Sampling
from agentrl_core.env.base import Task
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.group_runtime import GroupRuntime
from agentrl_core.rollout.library import Library
from agentrl_core.rollout.turn import uniform


class GroupView:
    """State of a running group; see `Group` for its attributes."""

    task: Task
    key: tuple[int, ...]
    name: str
    branches: list[Branch]
    _runtime: GroupRuntime

    @property
    def iteration(self) -> int:
        """The iteration in which it started."""
        return self.key[0]

    @property
    def prompt(self) -> str:
        """The task in words."""
        return self.task.question

    @property
    def count(self) -> int:
        """Number of its branches without helpers."""
        return sum(branch.role != "helper" for branch in self.branches)

    @property
    def statistics(self) -> Mapping[str, Any]:
        """Statistics of the task (attempts, successes, …) at the start of the iteration; empty for a new one."""
        return self._runtime.statistics(self.task.task_id)

    @property
    def library(self) -> Library:
        """Solved trajectories as of the start of the iteration, for demonstrations and prefixes."""
        return self._runtime.library

    @property
    def vocabulary_size(self) -> int:
        """V, the width of the policy's logits."""
        return self._runtime.vocabulary_size("policy")

    def __repr__(self) -> str:
        return f"Group({self.name}, task {self.task.task_id!r}, {len(self.branches)} branches)"

    def __lt__(self, other: GroupView) -> bool:
        return self.key < other.key

    def sampling(self, **changes: Any) -> Sampling:
        """Return the default sampling with changes: `group.sampling(temperature=0.0)`."""
        return replace(self._runtime.sampling("policy"), **changes)

    def uniform(self, *key: object) -> float:
        """Return a number in [0, 1), determined by seed, group and key."""
        return uniform(self._runtime.seed_of("group", self.name, *key, began=self.iteration))
