"""Roll out additional groups that are measured and not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import Component, option

if TYPE_CHECKING:
    from agentrl_core.select.pool import Pool


@dataclass(frozen=True)
class Survey(Component):
    """Roll out tasks to measure them, in round 0. Their groups are stored but never trained on.

    Sources: ARPO arXiv:2505.16282 (`Survey(rollouts=16)`, once over the pool), A*-PO arXiv:2505.20686
    (`Survey(rollouts=8)`), DOTS arXiv:2506.05316 (`Survey(tasks=256, every=2)`).

    Args:
        tasks: number of tasks, drawn uniformly; None: the whole pool.
        rollouts: rollouts of each task; None: the group size.
        every: iterations between two surveys, the first in iteration 0; None: once.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select import Survey
        >>> Survey(tasks=256, every=2).due(3)
        False
    """

    tasks: int | None = option(None, at_least=1)
    rollouts: int | None = option(None, at_least=1)
    every: int | None = option(None, at_least=1)

    def due(self, iteration: int) -> bool:
        """Return whether an iteration has a survey."""
        return iteration == 0 if self.every is None else iteration % self.every == 0

    def rows(self, pool: Pool, key: int) -> NDArray[np.int64]:
        """Return the rows of the surveyed tasks."""
        count = len(pool) if self.tasks is None else min(self.tasks, len(pool))
        return _core.select.drawn(len(pool), count, key, np.zeros(0, np.int64))
