"""Prompt variants as the arms of a bandit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import Component, option

if TYPE_CHECKING:
    from agentrl_core.component.state import State
    from agentrl_core.select.task_outcomes import TaskOutcomes


@dataclass(frozen=True)
class PromptBandit(Component):
    """Choose a prompt variant for each group by each variant's earlier rewards: p_j = softmax(w / temperature).

    After an iteration w_j <- (1 - rate) w_j + rate mean(reward) for the variants that were used. Every `halve_every`
    iterations the worse half of those with at least `least` rollouts is dropped, down to two.

    Source: INSPO, whose public reviews give the softmax and the halving; rate, temperature and numbers are chosen here.

    Args:
        variants: number of variants.
        temperature: temperature of the softmax.
        rate: how fast w follows the rewards.
        halve_every: iterations between two halvings; None: never.
        least: rollouts of a variant before it may be dropped.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select import PromptBandit
        >>> arms = PromptBandit(variants=4)
        >>> arms.probabilities(arms.initial_state()).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """

    variants: int = option(8, at_least=2)
    temperature: float = option(0.1, above=0)
    rate: float = option(0.1, above=0, at_most=1)
    halve_every: int | None = option(20, at_least=1)
    least: int = option(32, at_least=1)

    def initial_state(self) -> State:
        """Return the first state: equal weights, and no variant removed."""
        return {
            "weights": np.zeros(self.variants),
            "rollouts": np.zeros(self.variants, np.int64),
            "alive": np.ones(self.variants, np.bool_),
        }

    def probabilities(self, state: State) -> NDArray[np.float64]:
        """Return the probability of each variant."""
        scaled = np.where(state["alive"], state["weights"] / self.temperature, -np.inf)
        weights = np.exp(scaled - scaled.max())
        return np.asarray(weights / weights.sum())

    def choose(self, state: State, groups: int, key: int) -> NDArray[np.int32]:
        """Choose a variant for each group."""
        return _core.select.independent(self.probabilities(state), groups, key).astype(np.int32)

    def next(self, state: State, visits: TaskOutcomes) -> State:
        """Return the state after an iteration: weights, rollouts, and which variants are left."""
        used = (visits.variants >= 0) & (visits.variants < self.variants) & ~np.isnan(visits.rewards) & ~visits.survey
        variants, rewards = visits.variants[used], visits.rewards[used]
        counts = np.bincount(variants, minlength=self.variants)
        means = np.bincount(variants, weights=rewards, minlength=self.variants) / np.maximum(counts, 1)
        weights = state["weights"]
        weights = np.where(counts > 0, (1 - self.rate) * weights + self.rate * means, weights)
        rollouts, alive = state["rollouts"] + counts, state["alive"].copy()
        if self.halve_every is not None and (visits.iteration + 1) % self.halve_every == 0:
            known = np.flatnonzero(alive & (rollouts >= self.least))
            drop = min(len(known) // 2, int(alive.sum()) - 2)
            # Ties: the later variant is dropped.
            alive[known[np.lexsort((-known, weights[known]))][: max(drop, 0)]] = False
        return {"weights": weights, "rollouts": rollouts, "alive": alive}
