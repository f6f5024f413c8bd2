"""Components that work on a batch, and `Where`, which selects the draws that a component applies to."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import Component
from agentrl_core.component.options import column_name, option
from agentrl_core.data.table_codes import CODES

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Where(Component):
    """Select the draws that a component or a loss applies to: those that meet all given conditions.

    The component neither counts other draws in its statistics, nor writes or trains them. So a chain can use one
    advantage for fresh draws and another for replayed ones.

    Args:
        source: origin of the draw: `fresh`, `replay`, `expert`, `failed` or `imagined`; None: any.
        origin: origin of its trajectory: `generated`, `expert`, `imagined` or `imported`; None: any.
        role: its role in the group: `member`, `baseline` or `helper`; None: any.
        agent: number of the agent, in the order of the collector's engines; None: any.
        column: a draw column to compare with the bounds; NaN never matches. Empty: none.
        at_least: smallest value of the column; None: any.
        above: larger than this; None: any.
        at_most: largest value of the column; None: any.
        below: smaller than this; None: any.

    Example:
        >>> from agentrl_core import advantage, recipes
        >>> from agentrl_core.component import Where
        >>> fresh = advantage.GroupRelative(where=Where(source="fresh"))
        >>> stored = advantage.TrackedBaseline(where=Where(source="replay"))
        >>> recipe = recipes.GRPO.replace(advantage=(fresh, stored))
    """

    source: Literal["fresh", "replay", "expert", "failed", "imagined"] | None = None
    origin: Literal["generated", "expert", "imagined", "imported"] | None = None
    role: Literal["member", "baseline", "helper"] | None = None
    agent: int | None = option(None, at_least=0)
    column: str = column_name("", level="draw", optional=True)
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def check_options(self) -> None:
        """Require a bound for a column, and a column for a bound."""
        has_bound = any(getattr(self, bound) is not None for bound in ("at_least", "above", "at_most", "below"))
        remedy = "set at_least, above, at_most or below too" if self.column else "name the column that the bound is for"
        self.require(has_bound == bool(self.column), "column", remedy)

    def holds(self, batch: Batch, values: NDArray[np.float64] | None = None) -> NDArray[np.bool_]:
        """Return a mask of the matching draws, `bool[draws]`; `values` replaces the column if given."""
        mask = np.ones(batch.num_draws, np.bool_)
        for name in ("source", "origin", "role"):
            expected = getattr(self, name)
            if expected is not None:
                mask &= batch.column(name, "draw") == CODES[name].index(expected)
        if self.agent is not None:
            mask &= batch.column("agent", "draw") == self.agent
        if self.column:
            numbers = np.asarray(batch.column(self.column, "draw") if values is None else values, np.float64)
            mask &= np.isfinite(numbers)
            mask &= numbers >= (-math.inf if self.at_least is None else self.at_least)
            mask &= numbers > (-math.inf if self.above is None else self.above)
            mask &= numbers <= (math.inf if self.at_most is None else self.at_most)
            mask &= numbers < (math.inf if self.below is None else self.below)
        return mask


@dataclass(frozen=True)
class BatchComponent(Component, ABC):
    """Base class of components of phases reward, advantage and weight, which add columns to a batch.

    Args:
        where: the draws that it applies to; others neither vote nor are written. None: all.
    """

    where: Where | None = field(default=None, kw_only=True)

    @abstractmethod
    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns of `makes` added. `batch` itself stays as it is."""
