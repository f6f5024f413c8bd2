"""Base classes of rollout programs, and cohorts: the groups of one selection, for programs that plan over groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, overload

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import option
from agentrl_core.component.component import Component
from agentrl_core.env.base import ExtraColumn
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.runtime import Runtime
from agentrl_core.rollout.turn import uniform


class Cohort(Sequence[Group]):
    """The groups of one selection, in the order of their keys."""

    def __init__(self, runtime: Runtime, groups: Sequence[Group], key: tuple[int, ...]) -> None:
        self._runtime = runtime
        self._groups = list(groups)
        self.key = key

    @overload
    def __getitem__(self, index: int) -> Group: ...

    @overload
    def __getitem__(self, index: slice) -> list[Group]: ...

    def __getitem__(self, index: int | slice) -> Group | list[Group]:
        return self._groups[index]

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    async def run(self) -> None:
        """Run `Rollout.group` on each group, concurrently within the limit; most errors fail only their group."""
        await self._runtime.run_groups(self._groups, lambda group: group.program.group(group))

    async def run_each(self, program: Callable[[Group], Awaitable[Any]], groups: Sequence[Group] | None = None) -> None:
        """Run a program on each of some groups, concurrently within the limit."""
        await self._runtime.run_groups(self._groups if groups is None else list(groups), program)

    async def score(self, column: str = "score") -> list[NDArray[np.float64]]:
        """Score the ended branches of each group; see `Group.score`."""
        scores = []
        for group in self._groups:
            by_handle = self._runtime.scores(group, column)
            scores.append(np.array([by_handle.get(branch.handle, np.nan) for branch in group.branches]))
        return scores

    async def side_effect(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Call a function once per name, record its result, and return it; see `Group.side_effect`."""
        return await self._runtime.record(f"cohort {'.'.join(map(str, self.key))}/{name}", function)

    def uniform(self, *key: object) -> float:
        """Return a number in [0, 1), determined by seed, cohort and key."""
        return uniform(self._runtime.seed_of("cohort", *self.key, *key))


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
    """Whether the program forks only at tool results, which the environment must report (`StepFlag.TOOL_RESULT`)."""

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
        """Names of the collector's models that the program queries (`Group.query`)."""
        return ()

    def final_group_size(self, group_size: int) -> int:
        """Return the final number of members of a group, if it is known before the rollout."""
        return group_size


@dataclass(frozen=True)
class Independent(Rollout):
    """Sample the trajectories of a group independently from the prompt, without forks.

    Args:
        replacements: largest number of branches started in place of failed ones.

    Example:
        >>> from agentrl_core.rollout import Independent
        >>> Independent().final_group_size(group_size=8)
        8
    """

    replacements: int = option(0, at_least=0)

    async def group(self, group: Group) -> None:
        """Run all members concurrently, then up to `replacements` new members for failed ones."""
        remaining = self.replacements
        branches = await group.run(group.start_many(group.size))
        while remaining and (count := min(remaining, sum(branch.status == "failed" for branch in branches))):
            remaining -= count
            branches = await group.run(group.start_many(count))


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
        """Return `budget`; `group_size` is not used."""
        del group_size
        return self.budget
