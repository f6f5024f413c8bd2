"""Trackers: success rates, windows, returns and values of tasks, and predictions for those nobody tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import option
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.select.tracker import Candidates, Tracker, grown

if TYPE_CHECKING:
    from agentrl_core.component.state import State
    from agentrl_core.select.visits import Visits


@dataclass(frozen=True)
class Beta(Tracker):
    """The success rate of each task, as a Beta distribution whose evidence fades.

    With s successes among n rollouts of a visit, and k iterations without a visit before it:

        S <- decay idle_decay^k S + s,    F <- decay idle_decay^k F + n - s
        success rate ~ Beta(prior_success + S, prior_failure + F)

    so that old evidence regresses to the prior. The estimate is the mean (S + prior_success) / (S + F + both priors),
    `unseen` where that is 0 / 0. Idle iterations are counted when a task is looked at: no task costs anything while it
    waits. With `decay=1` and no prior the estimate is the plain share of successes.

    MoPPS arXiv:2507.04632 (alpha <- decay alpha + (1 - decay) alpha_0 + s is this rule); VADE arXiv:2511.18902
    (`idle_decay`); MSSR arXiv:2512.18215 (no prior, `decay` of about 0.9); Knapsack RL arXiv:2509.25849.

    Args:
        prior_success: evidence of success that every task has.
        prior_failure: evidence of failure.
        decay: what of the evidence a visit leaves.
        idle_decay: what of it an iteration without a visit leaves.
        of: what a rollout says: its `success`, or its `reward`, which has to be from 0 to 1 then.
        expected: column of the pool with the success rate that is expected of a task; its prior evidence is shared out
            by it. Empty: as given.
        unseen: the estimate without any evidence.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select import Beta
        >>> Beta(decay=0.5).column
        'success'
    """

    column: ClassVar[str] = "success"

    prior_success: float = option(1.0, at_least=0)
    prior_failure: float = option(1.0, at_least=0)
    decay: float = option(1.0, at_least=0, at_most=1)
    idle_decay: float = option(1.0, above=0, at_most=1)
    of: Literal["success", "reward"] = "success"
    expected: str = ""
    unseen: float = option(0.5, at_least=0, at_most=1)

    def initial_state(self) -> State:
        """No evidence."""
        return {"successes": np.zeros(0), "failures": np.zeros(0), "last": np.zeros(0, np.int64)}

    def next(self, state: State, visits: Visits) -> State:
        """The evidence after an iteration."""
        values = visits.solved if self.of == "success" else visits.rewards
        visits = visits.only(~np.isnan(values))
        values = visits.solved if self.of == "success" else visits.rewards
        if ((values < 0) | (values > 1)).any():
            wrong = values[(values < 0) | (values > 1)][0]
            raise InvalidInputError(f"{self.title()}: a reward is {wrong}; with of='reward' give rewards from 0 to 1")
        successes, failures, last = (grown(state[name], visits.known, 0) for name in ("successes", "failures", "last"))
        at, gained = visits.places, visits.sums(values)
        faded = self.decay * self._idle(last[at], visits.iteration)
        successes[at] = faded * successes[at] + gained
        failures[at] = faded * failures[at] + visits.counts - gained
        last[at] = visits.iteration
        return {"successes": successes, "failures": failures, "last": last}

    def _idle(self, last: NDArray[Any], iteration: int) -> NDArray[np.float64]:
        """What iterations without a visit left of the evidence, before `iteration`."""
        return np.asarray(self.idle_decay ** np.maximum(iteration - last - 1, 0))

    def evidence(self, state: State, candidates: Candidates) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Both parameters of the distribution of each candidate."""
        left = self._idle(candidates.read(state["last"], candidates.iteration), candidates.iteration)
        success, failure = np.float64(self.prior_success), np.float64(self.prior_failure)
        if self.expected:
            rate = candidates.column(self.expected).astype(np.float64)
            if not ((rate >= 0) & (rate <= 1)).all():
                raise InvalidInputError(
                    f"{self.title()}: column {self.expected!r} of the pool has numbers outside 0 to 1; give the success "
                    "rate that is expected of each task"
                )
            success, failure = (success + failure) * rate, (success + failure) * (1 - rate)
        alpha = left * candidates.read(state["successes"], 0.0) + success
        beta = left * candidates.read(state["failures"], 0.0) + failure
        return alpha, beta

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """The mean success rate."""
        alpha, beta = self.evidence(state, candidates)
        total = alpha + beta
        return np.where(total > 0, alpha / np.where(total > 0, total, 1.0), self.unseen)

    def posterior_draw(self, state: State, candidates: Candidates, key: int) -> NDArray[np.float64]:
        """A draw of the success rate."""
        alpha, beta = self.evidence(state, candidates)
        return _core.select.beta_draws(alpha, beta, candidates.rows, key)


@dataclass(frozen=True)
class Window(Tracker):
    """The last visits of each task, in a ring: their mean, and the bin that it lies in.

    Args:
        size: visits that count.
        of: what a visit leaves: `solved`, 1 if any rollout succeeded; `success`, the share that did (a learning curve);
            `reward`, the mean.
        bins: equal parts of [0, 1] that the mean is put into; the column `bin` says which. 0: none.
        hysteresis: how far beyond its border a mean has to be before its task changes the bin.
        unseen: the mean of a task that nobody tried.

    Raises:
        RecipeError: an option is out of range.

    Source: GDRO-RL arXiv:2601.19280 (`Window(50, "solved", bins=10, hysteresis=0.03)`); TraPO arXiv:2512.13106
    (`of="success"`).

    Example:
        >>> from agentrl_core.select import Window
        >>> Window(50, bins=10).initial_state()["visits"].shape
        (0, 50)
    """

    column: ClassVar[str] = "window"

    size: int = option(at_least=1)
    of: Literal["solved", "success", "reward"] = "solved"
    bins: int = option(0, at_least=0)
    hysteresis: float = option(0.0, at_least=0)
    unseen: float = 0.5

    def initial_state(self) -> State:
        """No visit of any task."""
        return {
            "visits": np.zeros((0, self.size), np.float32),
            "count": np.zeros(0, np.int64),
            "bin": np.zeros(0, np.int64),
        }

    def next(self, state: State, visits: Visits) -> State:
        """The windows after an iteration."""
        values = visits.rewards if self.of == "reward" else visits.solved
        visits = visits.only(~np.isnan(values))
        sums = visits.sums(visits.rewards if self.of == "reward" else visits.solved)
        latest = np.where(sums > 0, 1.0, 0.0) if self.of == "solved" else sums / np.maximum(visits.counts, 1)
        ring, count, bins = (grown(state[name], visits.known, 0) for name in ("visits", "count", "bin"))
        at = visits.places
        ring[at, count[at] % self.size] = latest
        new = count[at] == 0
        count[at] += 1
        if self.bins:
            means = self._means(ring[at], count[at])
            low, high = bins[at] / self.bins - self.hysteresis, (bins[at] + 1) / self.bins + self.hysteresis
            stays = ~new & (low <= means) & (means <= high)
            bins[at] = np.where(stays, bins[at], self._bin(means))
        return {"visits": ring, "count": count, "bin": bins}

    def _means(self, ring: NDArray[Any], count: NDArray[np.int64]) -> NDArray[np.float64]:
        """What a ring does not have yet is 0."""
        return ring.sum(axis=1, dtype=np.float64) / np.clip(count, 1, self.size)

    def _bin(self, means: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.clip((means * self.bins).astype(np.int64), 0, self.bins - 1)

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """The mean of the window."""
        seen = candidates.read(state["count"], 0) > 0
        means = self._means(state["visits"], state["count"]) if len(state["count"]) else np.zeros(0)
        return np.where(seen, candidates.read(means, self.unseen), self.unseen)

    def columns(self, state: State, candidates: Candidates) -> dict[str, NDArray[np.float32]]:
        """The mean of the window, and its bin (the middle one for a task that nobody tried)."""
        found = super().columns(state, candidates)
        if self.bins:
            seen = candidates.read(state["count"], 0) > 0
            found["bin"] = np.where(seen, candidates.read(state["bin"], 0), self.bins // 2).astype(np.float32)
        return found

    def curves(self, state: State, candidates: Candidates, length: int) -> NDArray[np.float64]:
        """The last `length` visits of each candidate, oldest first; NaN where there were fewer."""
        count = candidates.read(state["count"], 0).astype(np.int64)
        ages = np.arange(length, 0, -1)
        there = (ages <= count[:, None]) & (ages <= self.size)
        slots = np.where(there, (count[:, None] - ages) % self.size, 0)
        places = np.where(count > 0, candidates.places, 0)
        if not len(state["count"]):
            return np.full((len(candidates), length), np.nan)
        return np.where(there, state["visits"][places[:, None], slots], np.nan)


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

    def next(self, state: State, visits: Visits) -> State:
        """The progress after an iteration."""
        visits = visits.only(~np.isnan(visits.rewards))
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

    def next(self, state: State, visits: Visits) -> State:
        """ln sum exp(r / temperature), with the rollouts of an iteration."""
        visits = visits.only(~np.isnan(visits.rewards) & (visits.survey | (not self.surveys)))
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
class Tried(Tracker):
    """How often each task was visited. `Tasks(track=Tried(), score=Toward(0.0))` goes through the pool in passes.

    Example:
        >>> from agentrl_core.select import Tried
        >>> Tried().column
        'visits'
    """

    column: ClassVar[str] = "visits"

    def initial_state(self) -> State:
        """No visit."""
        return {"count": np.zeros(0, np.int64)}

    def next(self, state: State, visits: Visits) -> State:
        """One visit more of each task that was trained on."""
        visits = visits.only(~visits.survey)
        count = grown(state["count"], visits.known, 0)
        count[visits.places] += 1
        return {"count": count}

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """How often."""
        return candidates.read(state["count"], 0.0)


@dataclass(frozen=True)
class Annotated(Tracker):
    """A number that the pool has of each task already, such as the success rate that a model expects.

    Source: V0 and V0.5 (arXiv:2603.10848), whose value model annotates the pool.

    Args:
        by: column of the pool.

    Example:
        >>> from agentrl_core.select import Annotated
        >>> Annotated(by="prior").initial_state()
        {}
    """

    column: ClassVar[str] = "annotated"

    by: str = option(filled=True)

    def initial_state(self) -> State:
        """Nothing."""
        return {}

    def next(self, state: State, visits: Visits) -> State:  # noqa: ARG002 - it learns nothing
        """Nothing."""
        return state

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:  # noqa: ARG002 - it remembers nothing
        """The column."""
        return candidates.column(self.by).astype(np.float64)


@dataclass(frozen=True)
class Predicted(Tracker):
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
        >>> from agentrl_core.select import Predicted
        >>> Predicted(by="embedding").column
        'success'
    """

    column: ClassVar[str] = "success"

    by: str = option("embedding", filled=True)
    unseen: float = option(0.5, at_least=0, at_most=1)

    def initial_state(self) -> State:
        """No survey."""
        return {"rows": np.zeros(0, np.int64), "rates": np.zeros(0)}

    def next(self, state: State, visits: Visits) -> State:
        """The newest survey in place of the one before."""
        visits = visits.only(visits.survey & ~np.isnan(visits.solved))
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
