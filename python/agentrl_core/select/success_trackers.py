"""Trackers of success: rates with decaying evidence, and windows of the last visits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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
class Beta(Tracker):
    """Track the success rate of each task, as a Beta distribution with decaying evidence.

    With s successes among n rollouts of a visit, and k iterations without a visit before it:

        S <- decay idle_decay^k S + s,    F <- decay idle_decay^k F + n - s
        success rate ~ Beta(prior_success + S, prior_failure + F)

    so that old evidence regresses to the prior. The estimate is the mean (S + prior_success) / (S + F + both priors),
    or `unseen` if that is 0 / 0. Idle decay is applied on access, so idle tasks cost nothing. With `decay=1` and no
    prior the estimate is the plain share of successes.

    MoPPS arXiv:2507.04632 (alpha <- decay alpha + (1 - decay) alpha_0 + s is this rule); VADE arXiv:2511.18902
    (`idle_decay`); MSSR arXiv:2512.18215 (no prior, `decay` of about 0.9); Knapsack RL arXiv:2509.25849.

    Args:
        prior_success: evidence of success that every task has.
        prior_failure: evidence of failure.
        decay: share of the evidence that remains after a visit.
        idle_decay: share that remains after an iteration without a visit.
        of: the outcome of a rollout: its `success`, or its `reward`, which must be from 0 to 1.
        expected: column of the pool with the expected success rate of each task, which divides the sum of both priors.
            Empty: priors as given.
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
        """Return the state without evidence."""
        return {"successes": np.zeros(0), "failures": np.zeros(0), "last": np.zeros(0, np.int64)}

    def next(self, state: State, visits: TaskOutcomes) -> State:
        """Return the evidence after an iteration."""
        values = visits.solved if self.of == "success" else visits.rewards
        visits = visits.subset(~np.isnan(values))
        values = visits.solved if self.of == "success" else visits.rewards
        if ((values < 0) | (values > 1)).any():
            place = int(np.flatnonzero((values < 0) | (values > 1))[0])
            task = int(visits.rows[np.searchsorted(visits.offsets, place, side="right") - 1])
            raise InvalidInputError(
                f"{self.title()}: a reward of the task in row {task} of the pool is {values[place]}; with of='reward' "
                "give rewards from 0 to 1"
            )
        successes, failures, last = (visits.extended(state[name]) for name in ("successes", "failures", "last"))
        at, new_successes = visits.places, visits.sums(values)
        remaining = self.decay * self._idle(last[at], visits.iteration)
        successes[at] = remaining * successes[at] + new_successes
        failures[at] = remaining * failures[at] + visits.counts - new_successes
        last[at] = visits.iteration
        return {"successes": successes, "failures": failures, "last": last}

    def _idle(self, last: NDArray[Any], iteration: int) -> NDArray[np.float64]:
        """Return the share of each task's evidence that remains at `iteration`, by the iterations since its visit."""
        waited = np.maximum(iteration - last - 1, 0)
        return np.ones(len(waited)) if self.idle_decay == 1 else np.asarray(self.idle_decay**waited)

    def evidence(self, state: State, candidates: Candidates) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return both parameters of the distribution of each candidate."""
        alpha, beta = (np.full(len(candidates), prior) for prior in (self.prior_success, self.prior_failure))
        if self.expected:
            rate = candidates.column(self.expected).astype(np.float64)
            if not ((rate >= 0) & (rate <= 1)).all():
                place = int(np.flatnonzero(~((rate >= 0) & (rate <= 1)))[0])
                raise InvalidInputError(
                    f"{self.title()}: row {candidates.rows[place]} of the pool has {rate[place]} in column "
                    f"{self.expected!r}; give expected success rates from 0 to 1"
                )
            total = self.prior_success + self.prior_failure
            alpha, beta = total * rate, total * (1 - rate)
        here, there = candidates.known(state["last"])
        remaining = self._idle(state["last"][there], candidates.iteration)
        alpha[here] += remaining * state["successes"][there]
        beta[here] += remaining * state["failures"][there]
        return alpha, beta

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """Return the mean success rate."""
        alpha, beta = self.evidence(state, candidates)
        total = alpha + beta
        means = np.full(len(candidates), self.unseen)
        np.divide(alpha, total, out=means, where=total > 0)
        return means

    def posterior_draw(self, state: State, candidates: Candidates, key: int) -> NDArray[np.float64]:
        """Sample the success rate of each candidate."""
        alpha, beta = self.evidence(state, candidates)
        return _core.select.beta_draws(alpha, beta, candidates.rows, key)


@dataclass(frozen=True)
class RecentVisits(Tracker):
    """Track the mean result of the last visits of each task and, with `bins`, the bin in which it lies.

    Args:
        size: number of visits in the window.
        of: the value of a visit: `solved`, 1 if any rollout succeeded; `success`, the share that succeeded (a learning
            curve); `reward`, the mean.
        bins: number of equal bins of [0, 1]; column `bin` has the bin of the mean. 0: none.
        hysteresis: how far the mean must pass a border before its task changes the bin.
        unseen: the mean of an untried task.

    Raises:
        RecipeError: an option is out of range.

    Source: GDRO-RL arXiv:2601.19280 (`RecentVisits(50, "solved", bins=10, hysteresis=0.03)`); TraPO arXiv:2512.13106
    (`of="success"`).

    Example:
        >>> from agentrl_core.select import RecentVisits
        >>> RecentVisits(50, bins=10).initial_state()["visits"].shape
        (0, 50)
    """

    column: ClassVar[str] = "window"

    size: int = option(at_least=1)
    of: Literal["solved", "success", "reward"] = "solved"
    bins: int = option(0, at_least=0)
    hysteresis: float = option(0.0, at_least=0)
    unseen: float = 0.5

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tracker's columns: the mean and, with bins, `bin`."""
        return (self.column, "bin") if self.bins else (self.column,)

    def initial_state(self) -> State:
        """Return the state without visits."""
        return {
            "visits": np.zeros((0, self.size), np.float32),
            "count": np.zeros(0, np.int64),
            "bin": np.zeros(0, np.int64),
        }

    def next(self, state: State, visits: TaskOutcomes) -> State:
        """Return the windows after an iteration."""
        values = visits.rewards if self.of == "reward" else visits.solved
        visits = visits.subset(~np.isnan(values))
        sums = visits.sums(visits.rewards if self.of == "reward" else visits.solved)
        latest = np.where(sums > 0, 1.0, 0.0) if self.of == "solved" else sums / np.maximum(visits.counts, 1)
        ring, count, bins = (visits.extended(state[name]) for name in ("visits", "count", "bin"))
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
        """Return the mean of the visits in each window; unfilled entries of the ring buffer are 0."""
        means: NDArray[np.float64] = ring.sum(axis=1, dtype=np.float64) / np.clip(count, 1, self.size)
        return means

    def _bin(self, means: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.clip((means * self.bins).astype(np.int64), 0, self.bins - 1)

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """Return the mean of the window."""
        means = np.full(len(candidates), self.unseen)
        here, there = candidates.known(state["count"])
        count = state["count"][there]
        means[here] = np.where(count > 0, self._means(state["visits"][there], count), self.unseen)
        return means

    def columns(self, state: State, candidates: Candidates) -> dict[str, NDArray[np.float32]]:
        """Return the mean of the window, and its bin (the middle one for an untried task)."""
        values = super().columns(state, candidates)
        if self.bins:
            is_tried = candidates.read(state["count"], 0) > 0
            values["bin"] = np.where(is_tried, candidates.read(state["bin"], 0), self.bins // 2).astype(np.float32)
        return values

    def curves(self, state: State, candidates: Candidates, length: int) -> NDArray[np.float64]:
        """Return the last `length` visits of each candidate, oldest first, padded with NaN."""
        count = candidates.read(state["count"], 0).astype(np.int64)
        ages = np.arange(length, 0, -1)
        there = (ages <= count[:, None]) & (ages <= self.size)
        slots = np.where(there, (count[:, None] - ages) % self.size, 0)
        places = np.where(count > 0, candidates.places, 0)
        if not len(state["count"]):
            return np.full((len(candidates), length), np.nan)
        return np.where(there, state["visits"][places[:, None], slots], np.nan)
