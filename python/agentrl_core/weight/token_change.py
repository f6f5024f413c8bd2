"""Factors that follow what an update would do to a token, or how much a token depends on its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group
from agentrl_core.weight.entropy_scaled import mean_of_tokens
from agentrl_core.weight.factors import damping, entropy_change, probability_shape

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_MOST_LOG_RATIO = 20.0


@dataclass(frozen=True)
class EntropyChange(BatchComponent):
    """weight *= a factor that falls with how much the token's update would change the policy's entropy.

    With Omega = |A / pi_old * pi (1 - pi) (ln pi + H)|: `linear` goes from `most` at the smallest Omega of the batch
    to `least` at the largest (half way where all are equal), `exponential` is max(exp(-k Omega), least), which is
    `least` at the largest. Source: STEER, arXiv:2510.10150.

    Args:
        shape: see above.
        least: the smallest factor, above 0 and at most 1.
        most: of `linear`: the largest, at least `least`.
        floor: of `exponential`: the largest Omega counts as at least this, above 0.

    Raises:
        RecipeError: an option is out of range, or a column has no known value.

    Example:
        >>> from agentrl_core.weight import EntropyChange
        >>> EntropyChange().makes
        (('token', 'weight'),)
    """

    phase: ClassVar[str] = "weight"

    shape: Literal["linear", "exponential"] = "linear"
    least: float = 0.8
    most: float = 1.2
    floor: float = 0.02

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 < self.least <= 1.0, "least", "give a number above 0, at most 1")
        self.require(self.most >= self.least, "most", "give a number of at least least")
        self.require(self.floor > 0.0, "floor", "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Advantage, log-probs of now and of the rollout, and the entropy of now."""
        return needed("token", "advantage", "current_logprob", "behaviour_logprob", "current_entropy")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight of each token."""
        return (("token", "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, "token")
        names = ("current_logprob", "behaviour_logprob", "current_entropy")
        known = np.logical_and.reduce([rows.known(name) for name in names])
        columns = [np.where(known, rows.values(name), 0.0) for name in ("advantage", *names)]
        change, everywhere = entropy_change(*columns, valid=known), rows.keys("batch")
        if self.shape == "exponential":
            made = damping(change, everywhere, least=self.least, floor=self.floor, valid=known)
        else:
            made = self.most - (self.most - self.least) * group.min_max(change, everywhere, constant=0.5, valid=known)
        return rows.scale(np.where(known, made, 1.0))


@dataclass(frozen=True)
class InputDependency(BatchComponent):
    """weight of a draw *= least + n (most - least), with n how much its tokens depend on what they saw.

    A token's `dependency` is min(e^d - d - 1, cap), with d its log-prob under a perturbed input less that of the
    rollout; n is the mean over the draw's trained tokens, scaled to [0, 1] over the batch, and `most` is such that the
    mean factor is 1. All equal: 1. Source: VPPO, arXiv:2510.09285; its public code scales within a micro-batch and a
    device, which is not reproduced. `SelectTokens(column="dependency")` is its other half.

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


@dataclass(frozen=True)
class ProbabilityShaped(BatchComponent):
    """weight *= p / (p + constant), (1 - p)^constant or p^constant, with p the probability of the token.

    Sources: LUFFY, arXiv:2504.14945, and AMPO (`ratio`, 0.1, on tokens of an expert); RL-PLUS (`complement`).

    Args:
        shape: `ratio`, `complement` or `power`, in this order.
        constant: above 0.
        logprob: token column of ln p.
        only: draw column of 0 and 1: the draws it is for; empty: all.

    Raises:
        RecipeError: an option is out of range, or the column has no known value.

    Example:
        >>> from agentrl_core.weight import ProbabilityShaped
        >>> ProbabilityShaped(only="expert").needs
        (('token', 'current_logprob'), ('draw', 'expert'))
    """

    phase: ClassVar[str] = "weight"

    shape: Literal["ratio", "complement", "power"] = "ratio"
    constant: float = 0.1
    logprob: str = "current_logprob"
    only: str = ""

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.constant > 0.0, "constant", "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The log-probs, and for whom."""
        return (("token", self.logprob), *(needed("draw", self.only) if self.only else ()))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight of each token."""
        return (("token", "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, "token")
        known = rows.known(self.logprob)
        if self.only:
            known &= rows.flags(self.only)
        logprobs = np.where(known, rows.values(self.logprob), 0.0)
        return rows.scale(np.where(known, probability_shape(logprobs, shape=self.shape, constant=self.constant), 1.0))
