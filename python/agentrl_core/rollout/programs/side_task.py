"""Side tasks of a program: each member samples one action and is rewarded for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from agentrl_core.component.options import option
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Rollout


@dataclass(frozen=True)
class SideTask(Rollout, ABC):
    """Base class of derived tasks outside of the environment: judging, choosing, ranking.

    A program passes one to `Group.spawn`, with the question in the task. Every member gets the question, samples one
    action, and is rewarded by a subclass.

    Args:
        fact: a fact of the spawning program that marks its members; empty: none.
        value: value of the fact.

    Example:
        >>> from dataclasses import dataclass
        >>> from agentrl_core.rollout import SideTask
        >>> @dataclass(frozen=True)
        ... class YesOrNo(SideTask):
        ...     answer: str = "yes"
        ...     def reward(self, text):
        ...         return float(text.strip() == self.answer)
        >>> YesOrNo().reward(" yes")
        1.0
    """

    fact: str = option("")
    value: float = 1.0

    @abstractmethod
    def reward(self, text: str) -> float:
        """Return the reward of an answer; a reward above 0 counts as a success."""

    async def group(self, group: Group) -> None:
        """Run the requested number of members."""
        facts = {self.fact: self.value} if self.fact else None
        await group.run([group.start(group.prompt, facts=facts) for _ in range(group.size)])

    async def branch(self, branch: Branch) -> None:
        """Sample one action and reward it, without the environment."""
        await branch.generate()
        if not branch.over:
            reward = self.reward(branch.text)
            branch.finish(reward=reward, success=reward > 0.0)
