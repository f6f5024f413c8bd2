"""What a rollout program is: three methods, of which one overrides the smallest that is enough."""

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
    """Base of the rollout programs: which trajectories a task gets, and what happens in each.

    A program is plain asynchronous Python in the order of a paper's pseudo-code. It overrides the smallest of three
    methods that is enough; each has a default that is made of the one before it. What is awaited runs beside thousands
    of other branches; a program never waits for anything else, and takes random numbers from `uniform` alone, so that
    equal seeds give equal trees and a run that was killed goes on where it was.

    Example:
        A second look before the environment sees the answer:

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
    """What the program itself says of branches (`start(facts=...)`, `finish(facts=...)`), found as columns."""
    forks_at_tools: ClassVar[bool] = False
    """Whether it forks at tool results only; the environment then has to report them (`env.StepFlag.TOOL_RESULT`)."""

    async def branch(self, branch: Branch) -> None:
        """Drive one trajectory. Here: turn after turn until it is over.

        A branch that is not over when this returns ends here: it is finished with what it was paid so far.
        """
        while not branch.over:
            await branch.turn()

    async def group(self, group: Group) -> None:
        """Make the trajectories of one task. Here: as many as were asked for, side by side, each to its end."""
        await group.run(group.start_many(group.size))

    async def cohort(self, groups: Cohort) -> None:
        """Run the groups that were selected together. Here: all of them side by side."""
        await groups.run()

    @property
    def queried_models(self) -> tuple[str, ...]:
        """The collector's models that it asks for numbers (`Group.query`), by name."""
        return ()

    def final_group_size(self, group_size: int) -> int:
        """How many members a group has in the end, as far as that is known before."""
        return group_size


@dataclass(frozen=True)
class BudgetedRollout(Rollout):
    """Base of the programs that begin with a few branches of a group and fork them until its budget is spent.

    Args:
        budget: branches of a group in the end. It takes the place of the collector's `group_size`.
        initial: branches that start at the prompt.
    """

    budget: int = option(16, at_least=1)
    initial: int = option(8, at_least=1)

    def check_options(self) -> None:
        """The group begins within its budget."""
        self.require(self.initial <= self.budget, "initial", f"give a whole number from 1 to budget={self.budget}")

    def final_group_size(self, group_size: int) -> int:
        """`budget`; `group_size` is not used."""
        del group_size
        return self.budget
