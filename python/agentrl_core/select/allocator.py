"""Allocators choose the number of rollouts of each selected task, within the total of the iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import Component, option
from agentrl_core.select.task_score import OutcomeVariance, TaskScore

if TYPE_CHECKING:
    from agentrl_core.component.state import State
    from agentrl_core.select.task_outcomes import TaskOutcomes

Numbers = Mapping[str, NDArray[np.float64]]
"""Tracked numbers of some tasks, by name: `estimate`, and the columns of the tracker."""


@dataclass(frozen=True)
class Allocator(Component, ABC):
    """Base class of allocators of rollouts. One with state overrides `initial_state` and `next`."""

    @abstractmethod
    def counts(self, state: State, known: Numbers, total: int) -> NDArray[np.int32]:
        """Return the number of rollouts of each chosen task, at least 1.

        Args:
            state: state of the allocator.
            known: tracked numbers of the tasks.
            total: requested rollouts of the iteration.
        """

    def initial_state(self) -> State:
        """Return the empty state."""
        return {}

    def next(self, state: State, visits: TaskOutcomes, known: Numbers) -> State:  # noqa: ARG002 - no state
        """Return the state after an iteration.

        Args:
            state: state at the start of the iteration.
            visits: outcomes of the iteration by task.
            known: tracked numbers of the visited tasks at the start of the iteration.
        """
        return state


@dataclass(frozen=True)
class GreedyAllocator(Allocator):
    """Allocate rollouts to the tasks most likely to give a group with both outcomes.

    Maximises sum_i w_i (1 - p_i^n_i - (1 - p_i)^n_i) under sum n_i <= total and low <= n_i <= high; the greedy choice
    is exact, since the gain of a further rollout falls with n. Tasks that were never solved (p = 0) share the remaining
    rollouts.

    With `failures`, each rollout goes to the task with the largest gain in the expected number of failures in groups
    that have a success, n (1 - p) (1 - (1 - p)^(n - 1)); ties: the earlier task. This is not concave in n: a task with
    a small gain by the next rollout waits, even if the gains of later rollouts would be large.

    Source: Knapsack RL arXiv:2509.25849 (`weight="information"`: w = p (1 - p)^2); V0 arXiv:2602.03584
    (`weight="failures"`).

    Args:
        weight: w: `information` or `one`; or `failures`.
        low: fewest rollouts of a task; if the total is too small, all tasks get the same number.
        high: most rollouts of a task.
        gain_above: a rollout is only made if its gain is larger than this.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select import GreedyAllocator
        >>> GreedyAllocator("one").counts({}, {"estimate": np.array([0.5, 0.9, 1.0])}, total=8).tolist()
        [4, 2, 2]
    """

    weight: Literal["information", "one", "failures"] = "information"
    low: int = option(2, at_least=1)
    high: int = option(128, at_least=1)
    gain_above: float = option(0.0, at_least=0)

    def check_options(self) -> None:
        """Require low <= high."""
        self.require(self.low <= self.high, "low", f"give a number up to high={self.high}")

    def counts(self, state: State, known: Numbers, total: int) -> NDArray[np.int32]:  # noqa: ARG002 - no state
        """Return the number of rollouts of each task."""
        rates, fails = known["estimate"], self.weight == "failures"
        return _core.select.greedy(
            rates,
            rates * (1.0 - rates) ** 2 if self.weight == "information" else np.ones(len(rates)),
            value="failures" if fails else "mixed",
            total=total,
            low=self.low,
            high=self.high,
            gain_above=self.gain_above,
            rest=None if fails else rates == 0,
        ).astype(np.int32)


@dataclass(frozen=True)
class ProportionalAllocator(Allocator):
    """Allocate rollouts in proportion to a score, rounded so that they sum to the total.

    Source: GDRO-RL arXiv:2601.19280 (`ProportionalAllocator(OutcomeVariance())`: the optimal n is proportional to the
    standard deviation).

    Args:
        by: the score.
        low: fewest rollouts of a task.
        high: most rollouts of a task.

    Raises:
        RecipeError: an option is out of range.
        InvalidInputError: when counting: a score is negative or not finite, or all are 0.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select.allocator import ProportionalAllocator
        >>> solved = {"estimate": np.array([0.5, 0.8, 1.0])}
        >>> ProportionalAllocator(low=1).counts({}, solved, total=10).tolist()  # 0.5, 0.4, 0
        [5, 4, 1]
    """

    by: TaskScore = OutcomeVariance()
    low: int = option(2, at_least=1)
    high: int = option(128, at_least=1)

    def check_options(self) -> None:
        """Require low <= high."""
        self.require(self.low <= self.high, "low", f"give a number up to high={self.high}")

    def counts(self, state: State, known: Numbers, total: int) -> NDArray[np.int32]:  # noqa: ARG002 - no state
        """Return the number of rollouts of each task."""
        scores = self.by(known["estimate"])
        return _core.select.shares(scores, total=total, low=self.low, high=self.high).astype(np.int32)


@dataclass(frozen=True)
class DecayAllocator(Allocator):
    """Allocate fewer rollouts to solved tasks: n up to success rate `above`, then falling to `low` at 1.

    n(p) = max(low, round_up(n min(1, (1 - p) / (1 - above)))), with n the mean of the total. Remaining rollouts are
    saved.

    Source: DART arXiv:2509.23866, which gives the threshold (0.6) but not the shape of the decay.

    Args:
        above: success rate above which the number falls.
        low: fewest rollouts.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.select.allocator import DecayAllocator
        >>> DecayAllocator().counts({}, {"estimate": np.array([0.3, 0.8, 1.0])}, total=24).tolist()
        [8, 4, 1]
    """

    above: float = option(0.6, at_least=0, below=1)
    low: int = option(1, at_least=1)

    def counts(self, state: State, known: Numbers, total: int) -> NDArray[np.int32]:  # noqa: ARG002 - no state
        """Return the number of rollouts of each task."""
        rates = known["estimate"]
        per_task = total // max(len(rates), 1)
        parts = per_task * np.minimum(1.0, (1 - rates) / (1 - self.above))
        # Rounding errors in the last bits must not add a rollout.
        return np.clip(np.ceil(parts - 1e-9), min(self.low, per_task), per_task).astype(np.int32)


@dataclass(frozen=True)
class BanditAllocator(Allocator):
    """Choose the number of rollouts by a bandit per difficulty, with a price that keeps the total.

    Tasks lie in bins by the tracker's column `bin` (`RecentVisits(bins=)`), or else by their estimate. Bin b plays arm
    n_b, all bins together the choice that maximises sum_b ln p_b(n_b) under sum of rollouts = total, where

        p_b = (1 - explore) softmax(S_b) + explore / arms
        S_b(n_b) <- S_b(n_b) + rate (J_b - price n_b)        of the arm that was played, J_b the bin's mean reward
        price <- max(0, price + price_rate (mean n - average))

    Source: Rollout-GDRO, arXiv:2601.19280; where text and code differ in the sign of a gain, a larger reward is better.

    Args:
        low: the smallest arm.
        high: the largest arm.
        bins: number of bins of success rates.
        rate: learning rate of the arms' scores.
        explore: share of the probability that is uniform over arms.
        price_rate: learning rate of the price.
        average: target mean of rollouts per task.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select.allocator import BanditAllocator
        >>> BanditAllocator(low=2, high=4, bins=3).initial_state()["scores"].shape
        (3, 3)
    """

    low: int = option(2, at_least=1)
    high: int = option(8, at_least=1)
    bins: int = option(10, at_least=1)
    rate: float = option(0.65, above=0)
    explore: float = option(0.01, above=0, at_most=1)
    price_rate: float = option(0.01, at_least=0)
    average: float = option(4.0, above=0)

    def check_options(self) -> None:
        """Require at least one arm."""
        self.require(self.low <= self.high, "low", f"give a number up to high={self.high}")

    def initial_state(self) -> State:
        """Return equal arms and price 0."""
        return {"scores": np.zeros((self.bins, self.high - self.low + 1)), "price": 0.0}

    def _bins(self, known: Numbers) -> NDArray[np.int64]:
        bins = known.get("bin", known["estimate"] * self.bins)
        return np.clip(bins.astype(np.int64), 0, self.bins - 1)

    def counts(self, state: State, known: Numbers, total: int) -> NDArray[np.int32]:
        """Return the arm of each task's bin."""
        bins = self._bins(known)
        scores = state["scores"]
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances = (1 - self.explore) * chances / chances.sum(axis=1, keepdims=True) + self.explore / scores.shape[1]
        sizes = np.bincount(bins, minlength=self.bins).astype(np.uint32)
        arms = np.arange(self.low, self.high + 1, dtype=np.uint32)
        played = _core.select.best_arms(np.log(chances).ravel(), sizes, arms, total=total)
        return arms[played[bins]].astype(np.int32)

    def next(self, state: State, visits: TaskOutcomes, known: Numbers) -> State:
        """Return scores and price after an iteration."""
        bins, counts = self._bins(known), visits.counts
        rewards = visits.sums(np.nan_to_num(visits.rewards))
        scores = state["scores"].copy()
        for number in np.unique(bins).tolist():
            of_bin = bins == number
            rollouts = int(counts[of_bin].sum())
            played = int(np.clip(np.round(rollouts / of_bin.sum()), self.low, self.high))
            gain = rewards[of_bin].sum() / rollouts - state["price"] * played
            scores[number, played - self.low] += self.rate * gain
        mean = float(counts.mean()) if len(counts) else self.average
        price = max(0.0, state["price"] + self.price_rate * (mean - self.average))
        return {"scores": scores, "price": price}
