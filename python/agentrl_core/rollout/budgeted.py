"""Programs that spend a budget: some branches begin, and others leave them until there are enough."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core.component import option
from agentrl_core.rollout.program import Rollout


@dataclass(frozen=True)
class Budgeted(Rollout):
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

    def branches(self, group_size: int) -> int:
        """`budget`; `group_size` is not used."""
        del group_size
        return self.budget
