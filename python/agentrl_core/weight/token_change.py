"""Factors that follow how much a draw depends on its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, mean_of_tokens, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_MOST_LOG_RATIO = 20.0


@dataclass(frozen=True)
class InputDependency(BatchComponent):
    """weight of a draw *= least + n (most - least), with n how much its tokens depend on what they saw.

    A token's `dependency` is min(e^d - d - 1, cap), with d its log-prob under a perturbed input less that of the
    rollout; n is the mean over the draw's trained tokens, scaled to [0, 1] over the batch, and `most` is such that the
    mean factor is 1. All equal: 1. Source: VPPO, arXiv:2510.09285; its public code scales within a micro-batch and a
    device, which is not reproduced. `loss.TopShare("dependency")` is its other half.

    Args:
        least: the smallest factor, from 0 to 1.
        cap: the largest dependency, above 0.

    Raises:
        RecipeError: an option is out of range, or a column has no known value.

    Example:
        >>> from agentrl_core.weight import InputDependency
        >>> InputDependency().makes
        (('draw', 'weight'), ('token', 'dependency'))
    """

    phase: ClassVar[str] = "weight"

    least: float = 0.9
    cap: float = 10.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 <= self.least <= 1.0, "least", "give a number from 0 to 1")
        self.require(self.cap > 0.0, "cap", "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Log-probs under the perturbed input, and of the rollout."""
        return needed("token", "perturbed_logprob", "behaviour_logprob")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight of each draw, and the dependency of each token."""
        return (("draw", "weight"), ("token", "dependency"))

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled, and the column `dependency` (NaN where it is not known)."""
        rows = Rows(batch, "token")
        known = rows.known("perturbed_logprob") & rows.known("behaviour_logprob")
        gap = np.where(known, rows.values("perturbed_logprob") - rows.values("behaviour_logprob"), 0.0)
        gap = np.clip(gap, -_MOST_LOG_RATIO, _MOST_LOG_RATIO)
        dependency = np.minimum(np.expm1(gap) - gap, self.cap)
        batch = rows.write(dependency=np.where(known, dependency, np.nan))
        means, some = mean_of_tokens(batch, "dependency", "draw")
        draws = Rows(batch, "draw")
        everywhere = draws.keys("batch")
        scaled = group.min_max(means, everywhere, valid=some)
        middle = np.nan_to_num(group.statistics(scaled, everywhere, valid=some).mean, nan=0.0)
        level = middle[everywhere] if len(middle) else np.zeros(len(draws))
        rise = np.divide(1.0 - self.least, level, out=np.zeros(len(draws)), where=level > 0.0)
        return draws.scale(np.where(some & (level > 0.0), self.least + scaled * rise, 1.0))
