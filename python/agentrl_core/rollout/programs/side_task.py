"""Questions of a program's own: each member says one thing, and is paid for what it says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from agentrl_core.component.options import option
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Rollout


@dataclass(frozen=True)
class SideTask(Rollout, ABC):
    """Base of derived tasks that the environment knows nothing of: to judge an answer, to choose a way, to rank.

    A program gives one to `Group.spawn`, with the question in the task. Every member is asked that, says one action,
    and is paid by a subclass.

    Args:
        fact: a fact of the program that spawns it, by which its members are known; empty: none.
        value: of the fact.

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
        """What an answer is paid; above 0 it is a success."""

    async def group(self, group: Group) -> None:
        """As many as were asked for."""
        facts = {self.fact: self.value} if self.fact else None
        await group.run([group.start(group.prompt, facts=facts) for _ in range(group.size)])

    async def branch(self, branch: Branch) -> None:
        """One action, and what it is paid; the environment does not see it."""
        await branch.generate()
        if not branch.over:
            reward = self.reward(branch.text)
            branch.finish(reward=reward, success=reward > 0.0)
