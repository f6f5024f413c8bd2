"""Rollout programs: override the smallest of three methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core.component import option
from agentrl_core.component.component import Component
from agentrl_core.env.base import ExtraColumn
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.cohort import Cohort
from agentrl_core.rollout.group import Group


@dataclass(frozen=True)
class Rollout(Component):
    """Base class of rollout programs, which define the trajectories of a task.

    A program is plain asynchronous Python that follows a paper's pseudo-code. It overrides the smallest sufficient of
    three methods; the default of each calls the one before. Awaited calls run concurrently with thousands of other
    branches. A program must not block otherwise, and takes random numbers from `uniform` only, so that equal seeds give
    equal trees and killed runs resume.

    Example:
        Revise an action before it is submitted:

        >>> from dataclasses import dataclass
        >>> from agentrl_core.rollout import Branch, Rollout
        >>> @dataclass(frozen=True)
        ... class Reflect(Rollout):
        ...     async def branch(self, branch: Branch) -> None:
        ...         await branch.generate()
        ...         branch.inject("Check your answer.")
        ...         while not branch.over:
        ...             await branch.turn()
        >>> Reflect().final_group_size(group_size=8)
        8
    """

    phase: ClassVar[str] = "rollout"
    facts: ClassVar[Mapping[str, ExtraColumn]] = {}
    """Facts that the program sets on branches (`start(facts=...)`, `finish(facts=...)`), which become columns."""
    forks_at_tools: ClassVar[bool] = False
    """Whether it forks at tool results only; the environment then has to report them (`env.StepFlag.TOOL_RESULT`)."""

    async def branch(self, branch: Branch) -> None:
        """Drive one trajectory. By default: turns until it ends.

        A branch that has not ended when this returns is finished with its rewards so far.
        """
        while not branch.over:
            await branch.turn()

    async def group(self, group: Group) -> None:
        """Create the trajectories of one task. By default: the requested number, concurrently, each to its end."""
        await group.run(group.start_many(group.size))

    async def cohort(self, groups: Cohort) -> None:
        """Run the groups that were selected together. By default: all concurrently."""
        await groups.run()

    @property
    def queried_models(self) -> tuple[str, ...]:
        """Names of the collector's models that it queries (`Group.query`)."""
        return ()

    def final_group_size(self, group_size: int) -> int:
        """Return the final number of members of a group, if known before."""
        return group_size


@dataclass(frozen=True)
class BudgetedRollout(Rollout):
    """Base class of programs that start a few branches and fork them until the budget is spent.

    Args:
        budget: final number of branches of a group. It replaces the collector's `group_size`.
        initial: branches that start at the prompt.
    """

    budget: int = option(16, at_least=1)
    initial: int = option(8, at_least=1)

    def check_options(self) -> None:
        """Require initial <= budget."""
        self.require(self.initial <= self.budget, "initial", f"give a whole number from 1 to budget={self.budget}")

    def final_group_size(self, group_size: int) -> int:
        """`budget`; `group_size` is not used."""
        del group_size
        return self.budget
