"""Trackers of visits, and of success rates predicted for untried tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import option
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.select.tracker import Candidates, Tracker

if TYPE_CHECKING:
    from agentrl_core.component.state import State
    from agentrl_core.select.task_outcomes import TaskOutcomes


@dataclass(frozen=True)
class VisitCount(Tracker):
    """Count the visits of each task outside of surveys.

    `ComposedSelector(track=VisitCount(), score=NearTarget(0.0))` goes through the pool in passes.

    Example:
        >>> from agentrl_core.select.value_trackers import VisitCount
        >>> VisitCount().column
        'visits'
    """

    column: ClassVar[str] = "visits"

    def initial_state(self) -> State:
        """Return the state without visits."""
        return {"count": np.zeros(0, np.int64)}

    def next(self, state: State, visits: TaskOutcomes) -> State:
        """Count one more visit for each task that was tried outside of a survey."""
        visits = visits.subset(~visits.survey)
        count = visits.extended(state["count"])
        count[visits.places] += 1
        return {"count": count}

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """Return the number of visits."""
        return candidates.read(state["count"], 0.0)


@dataclass(frozen=True)
class PredictedSuccess(Tracker):
    """Predict the success rate of every task from the latest survey, by similarity to the surveyed tasks.

    With the vectors z of the pool's column `by` and the success rates p_j of the K tasks that were surveyed last:

        p(q) = sum_j softmax_j(z_q z_j / sqrt(width)) p_j

    A surveyed task has its own p_j. So every task has an estimate before its first rollout. Source: DOTS
    arXiv:2506.05316, whose projection h and calibration are trained: annotate the pool with h(z).

    Args:
        by: column of the pool: a vector for each task.
        unseen: the estimate before the first survey.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select import PredictedSuccess
        >>> PredictedSuccess(by="embedding").column
        'success'
    """

    column: ClassVar[str] = "success"

    by: str = option("embedding", filled=True)
    unseen: float = option(0.5, at_least=0, at_most=1)

    def initial_state(self) -> State:
        """Return the state before the first survey."""
        return {"rows": np.zeros(0, np.int64), "rates": np.zeros(0)}

    def next(self, state: State, visits: TaskOutcomes) -> State:
        """Return the state after an iteration: its survey, if it had one, replaces the previous one."""
        visits = visits.subset(visits.survey & ~np.isnan(visits.solved))
        if not len(visits):
            return state
        return {"rows": visits.rows, "rates": visits.sums(visits.solved) / visits.counts}

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """Return the expected success rate."""
        rows, rates = state["rows"], state["rates"]
        if not len(rows):
            return np.full(len(candidates), self.unseen)
        vectors = candidates.pool.column(self.by)
        if vectors.ndim != 2:
            raise InvalidInputError(f"{self.title()}: column {self.by!r} of the pool has no vectors; give a 2-D array")
        queries, references = (vectors[indexes].astype(np.float64).ravel() for indexes in (candidates.rows, rows))
        width = vectors.shape[1]
        expected = _core.select.attended(queries, references, rates, width, float(np.sqrt(width)))
        places = _core.select.places(rows, candidates.rows)
        return np.where(places >= 0, rates[places], expected)
