"""Trackers of what tasks pay: learning progress, optimal values, passes, and predictions for tasks nobody tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import option
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.select.tracker import Candidates, Tracker, grown

if TYPE_CHECKING:
    from agentrl_core.component.state import State
    from agentrl_core.select.task_outcomes import TaskOutcomes


@dataclass(frozen=True)
class LearningProgress(Tracker):
    """How much the mean reward of each task moves: the size of its last changes, smoothed.

    ALP <- (1 - rate) ALP + rate |r - r_last| at every visit but the first, which leaves 0; r_last is 0 before
    that with `from_zero`, so that the first visit counts too.

    Source: absolute learning progress as in TeachMyAgent, arXiv:2103.09815.

    Args:
        rate: of the smoothing; 1: the last change alone.
        from_zero: whether the first return is a change from 0.
        unseen: the progress of a task that nobody tried.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select import LearningProgress
        >>> LearningProgress(rate=0.5).column
        'progress'
    """

    column: ClassVar[str] = "progress"

    rate: float = option(1.0, above=0, at_most=1)
    from_zero: bool = False
    unseen: float = option(0.0, at_least=0)

    def initial_state(self) -> State:
        """No return of any task."""
        return {"last": np.zeros(0), "progress": np.zeros(0), "count": np.zeros(0, np.int64)}

    def next(self, state: State, visits: TaskOutcomes) -> State:
        """The progress after an iteration."""
        visits = visits.subset(~np.isnan(visits.rewards))
        last, progress, count = (grown(state[name], visits.known, 0) for name in ("last", "progress", "count"))
        at, returns = visits.places, visits.sums(visits.rewards) / np.maximum(visits.counts, 1)
        moved = (count[at] > 0) | self.from_zero
        change = np.abs(returns - last[at])
        progress[at] = np.where(moved, (1 - self.rate) * progress[at] + self.rate * change, 0.0)
        last[at] = returns
        count[at] += 1
        return {"last": last, "progress": progress, "count": count}

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """The absolute learning progress."""
        seen = candidates.read(state["count"], 0) > 0
        return np.where(seen, candidates.read(state["progress"], self.unseen), self.unseen)


@dataclass(frozen=True)
class LogMeanExp(Tracker):
    """The optimal value of each task from many rollouts: temperature ln mean exp(r / temperature).

    Source: A*-PO arXiv:2505.20686 (V* from 8 rollouts of the reference, which a `Survey` makes; temperature 0.5).

    Args:
        temperature: above 0; large ones give the mean, small ones the maximum.
        surveys: whether only surveys count, as for a value of the reference policy.
        unseen: the value of a task that nobody tried.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select import LogMeanExp
        >>> LogMeanExp().column
        'value_star'
    """

    column: ClassVar[str] = "value_star"

    temperature: float = option(0.5, above=0)
    surveys: bool = True
    unseen: float = 0.0

    def initial_state(self) -> State:
        """No rollout of any task."""
        return {"log_sum": np.zeros(0), "count": np.zeros(0, np.int64)}

    def next(self, state: State, visits: TaskOutcomes) -> State:
        """Ln sum exp(r / temperature), with the rollouts of an iteration."""
        visits = visits.subset(~np.isnan(visits.rewards) & (visits.survey | (not self.surveys)))
        log_sum, count = (grown(state[name], visits.known, 0) for name in ("log_sum", "count"))
        if len(visits):
            at = visits.places
            added = np.logaddexp.reduceat(visits.rewards / self.temperature, visits.offsets[:-1])
            before = np.where(count[at] > 0, log_sum[at], -np.inf)
            log_sum[at] = np.logaddexp(before, added)
            count[at] += visits.counts
        return {"log_sum": log_sum, "count": count}

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """The value."""
        count = candidates.read(state["count"], 0)
        values = self.temperature * (candidates.read(state["log_sum"], 0.0) - np.log(np.maximum(count, 1)))
        return np.where(count > 0, values, self.unseen)


@dataclass(frozen=True)
class VisitCount(Tracker):
    """Count the visits of each task.

    `ComposedSelector(track=VisitCount(), score=NearTarget(0.0))` goes through the pool in passes.

    Example:
        >>> from agentrl_core.select import VisitCount
        >>> VisitCount().column
        'visits'
    """

    column: ClassVar[str] = "visits"

    def initial_state(self) -> State:
        """Return the state without visits."""
        return {"count": np.zeros(0, np.int64)}

    def next(self, state: State, visits: TaskOutcomes) -> State:
        """Count one more visit for each trained task."""
        visits = visits.subset(~visits.survey)
        count = grown(state["count"], visits.known, 0)
        count[visits.places] += 1
        return {"count": count}

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """Return the number of visits."""
        return candidates.read(state["count"], 0.0)


@dataclass(frozen=True)
class PoolColumn(Tracker):
    """A number that the pool has of each task already, such as the success rate that a model expects.

    Source: V0 arXiv:2602.03584 and V0.5 arXiv:2603.10848, whose value model annotates the pool.

    Args:
        by: column of the pool.

    Example:
        >>> from agentrl_core.select import PoolColumn
        >>> PoolColumn(by="prior").initial_state()
        {}
    """

    column: ClassVar[str] = "annotated"

    by: str = option(filled=True)

    def initial_state(self) -> State:
        """Nothing."""
        return {}

    def next(self, state: State, visits: TaskOutcomes) -> State:  # noqa: ARG002 - it learns nothing
        """Nothing."""
        return state

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:  # noqa: ARG002 - it remembers nothing
        """The column."""
        return candidates.column(self.by).astype(np.float64)


@dataclass(frozen=True)
class PredictedSuccess(Tracker):
    """The success rate that is expected of any task, from surveys of a few others that are alike.

    With the vectors z of the pool's column `by` and the success rates p_j of the K tasks that were surveyed last:

        p(q) = sum_j softmax_j(z_q z_j / sqrt(width)) p_j

    A surveyed task has its own p_j. So a task has a difficulty before anybody tries it. Source: DOTS arXiv:2506.05316,
    whose projection h and calibration are trained: annotate the pool with h(z).

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
        """No survey."""
        return {"rows": np.zeros(0, np.int64), "rates": np.zeros(0)}

    def next(self, state: State, visits: TaskOutcomes) -> State:
        """The newest survey in place of the one before."""
        visits = visits.subset(visits.survey & ~np.isnan(visits.solved))
        if not len(visits):
            return state
        return {"rows": visits.rows, "rates": visits.sums(visits.solved) / visits.counts}

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """The expected success rate."""
        rows, rates = state["rows"], state["rates"]
        if not len(rows):
            return np.full(len(candidates), self.unseen)
        vectors = candidates.pool.column(self.by)
        if vectors.ndim != 2:
            raise InvalidInputError(f"{self.title()}: column {self.by!r} of the pool has no vectors; give a 2-D array")
        queries, references = (vectors[some].astype(np.float64).ravel() for some in (candidates.rows, rows))
        width = vectors.shape[1]
        expected = _core.select.attended(queries, references, rates, width, float(np.sqrt(width)))
        places = _core.select.places(rows, candidates.rows)
        return np.where(places >= 0, rates[places], expected)
