"""A cohort: the groups of one selection, for programs with a budget over several groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

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
        """Run `Rollout.group` on each, concurrently within the limit; an error fails only its group."""
        await self.run_each(lambda group: group.program.group(group))

    async def run_each(self, program: Callable[[Group], Awaitable[Any]], groups: Sequence[Group] | None = None) -> None:
        """Run a program on each of some groups, concurrently within the limit."""
        await self._runtime.run_groups(self._groups if groups is None else list(groups), program)

    async def score(self, column: str = "score") -> list[NDArray[np.float64]]:
        """Score the ended branches of each group; see `Group.score`."""
        scores = []
        for group in self._groups:
            found = self._runtime.scores(group, column)
            scores.append(np.array([found.get(branch.handle, np.nan) for branch in group.branches]))
        return scores

    async def side_effect(self, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of `function()`, journalled first, once per name. See `Group.side_effect`."""
        return await self._runtime.record(f"cohort {'.'.join(map(str, self.key))}/{name}", function)

    def uniform(self, *key: object) -> float:
        """Return a number in [0, 1), determined by seed, cohort and key."""
        return uniform(self._runtime.seed_of("cohort", *self.key, *key))
