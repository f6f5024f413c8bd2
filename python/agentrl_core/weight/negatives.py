"""Factors by the sign of the advantage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, level_of, needed, sums
from agentrl_core.operators import group

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentrl_core.data.batch import Batch


def scaled_by_sign(batch: Batch, positive: float, negative: float | NDArray[np.float64]) -> Batch:
    """The batch with its `weight` scaled by the sign of the advantage; `negative`: one factor, or one a draw."""
    rows = Rows(batch, level_of(batch, "advantage", "draw"))
    below = negative[rows.draws] if isinstance(negative, np.ndarray) else negative
    advantages = rows.values("advantage")
    return rows.scale(np.where(advantages > 0.0, positive, np.where(advantages < 0.0, below, 1.0)))


@dataclass(frozen=True)
class NegativeBySuccess(BatchComponent):
    """Negative advantages of a group weigh clamp(base + slope * mean score of the group, 0, 1).

    Failures of tasks that are hardly ever solved push less. Source: GUI-Libra, arXiv:2602.22190.

    Args:
        base: factor of a group whose mean score is 0.
        slope: how fast the factor grows with the mean score.

    Example:
        >>> from agentrl_core.weight import NegativeBySuccess
        >>> NegativeBySuccess().needs
        (('token', 'advantage'), ('draw', 'score'), ('draw', 'group_id'))
    """

    phase: ClassVar[str] = "weight"

    base: float = 0.5
    slope: float = 1.5

    @property
    def needs(self) -> tuple[Column, ...]:
        """The advantage, and the scores of the groups."""
        return (("token", "advantage"), *needed("draw", "score", "group_id"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight, at the level of the advantage."""
        return (("token", "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, "draw")
        groups = rows.keys("group_id")
        mean = group.statistics(rows.values("score"), groups, valid=rows.valid).mean
        factor = np.clip(self.base + self.slope * np.nan_to_num(mean, nan=0.0), 0.0, 1.0)
        return scaled_by_sign(batch, 1.0, factor[groups])


@dataclass(frozen=True)
class NegativeByConfidence(BatchComponent):
    """Negative advantages of a draw weigh min(1 + alpha g(c), most), with c how much surer of it the policy became.

    c is the sum over the draw's trained tokens of log pi - log pi_reference, and g softplus: errors that the policy
    became sure of push more. Source: ACE, arXiv:2602.21420.

    Args:
        alpha: at least 0; 0 leaves the weights as they are.
        shape: g: `softplus`, ln(1 + e^c), or `relu`, max(c, 0).
        length: c is the `sum` over tokens, or their `mean`.
        most: the largest factor, at least 1.
        logprob: token column of log pi: of the rollout, or recomputed.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.weight import NegativeByConfidence
        >>> NegativeByConfidence().needs
        (('token', 'advantage'), ('token', 'behaviour_logprob'), ('token', 'reference_logprob'))
    """

    phase: ClassVar[str] = "weight"

    alpha: float = 1.0
    shape: Literal["softplus", "relu"] = "softplus"
    length: Literal["sum", "mean"] = "sum"
    most: float = 5.0
    logprob: str = "behaviour_logprob"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.alpha >= 0.0, "alpha", "give a number of at least 0")
        self.require(self.most >= 1.0, "most", "give a number of at least 1")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The advantage, and log-probs of policy and reference."""
        return needed("token", "advantage", self.logprob, "reference_logprob")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight, at the level of the advantage."""
        return (("token", "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        tokens = Rows(batch, "token")
        counted = tokens.known(self.logprob) & tokens.known("reference_logprob")
        gain = np.where(counted, tokens.values(self.logprob) - tokens.values("reference_logprob"), 0.0)
        surer = sums(gain, tokens.draws, batch.num_draws)
        if self.length == "mean":
            surer /= np.maximum(sums(counted.astype(np.float64), tokens.draws, batch.num_draws), 1.0)
        grown = np.logaddexp(0.0, surer) if self.shape == "softplus" else np.maximum(surer, 0.0)
        return scaled_by_sign(batch, 1.0, np.minimum(1.0 + self.alpha * grown, self.most))


@dataclass(frozen=True)
class LiveRescale(BatchComponent):
    """weight *= how many there are / how many carry a signal, so that dead groups do not shrink the step.

    `groups`: groups, and groups whose scores differ (RAPO, arXiv:2509.24107). `rows`: draws, and
    draws whose `column` is not 0 (GPG, arXiv:2504.02546; MC-GRPO arXiv:2601.22582 within groups, where the pivot row
    counts among the rows and has advantage 0). Where nothing carries a signal the factor is 1.

    Args:
        by: `groups` or `rows`.
        column: draw column that says which rows carry a signal.
        scope: count in the whole `batch`, or (only `rows`) in each `group`.
        most: the largest factor, at least 1; None: no limit.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.weight import LiveRescale
        >>> LiveRescale().makes
        (('draw', 'weight'),)
    """

    phase: ClassVar[str] = "weight"

    by: Literal["groups", "rows"] = "groups"
    column: str = "score"
    scope: Literal["batch", "group"] = "batch"
    most: float | None = None

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.scope == "batch" or self.by == "rows", "scope", 'choose by="rows", or scope="batch"')
        self.require(self.most is None or self.most >= 1.0, "most", "give a number of at least 1, or None")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The signal, and the groups."""
        return needed("draw", self.column, "group_id")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight of each draw."""
        return (("draw", "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, "draw")
        values, groups = rows.values(self.column), rows.keys("group_id")
        counted = rows.valid & np.isfinite(values)
        if self.by == "groups":
            found = group.statistics(values, groups, valid=counted)
            live, there, index = found.most > found.least, found.count > 0, np.zeros(len(rows), dtype=np.uint32)
            share = np.array([live[there].mean() if there.any() else 0.0])
        else:
            index = groups if self.scope == "group" else rows.keys("batch")
            share = group.statistics((values != 0.0).astype(np.float64), index, valid=counted).mean
        share = np.nan_to_num(share, nan=0.0)
        factor = np.divide(1.0, share, out=np.ones_like(share), where=share > 0.0)
        return rows.scale(np.minimum(factor, np.inf if self.most is None else self.most)[index])
