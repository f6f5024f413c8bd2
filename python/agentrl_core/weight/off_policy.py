"""Corrections of tokens that another policy sampled: an older one, or the engine's numerics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group
from agentrl_core.weight.importance import importance_weights, trust_region

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


_Level = Literal["token", "step", "step_geometric", "sequence", "geometric", "prefix", "prefix_min"]
_LEVELS: dict[
    str, Literal["token", "segment", "segment_geometric", "sequence", "geometric", "prefix", "prefix_min"]
] = {
    "token": "token",
    "step": "segment",
    "step_geometric": "segment_geometric",
    "sequence": "sequence",
    "geometric": "geometric",
    "prefix": "prefix",
    "prefix_min": "prefix_min",
}


@dataclass(frozen=True)
class _Ratio(BatchComponent):
    """Base of the components that compare two policies on the tokens.

    Args:
        numerator: token column of log-probs of the policy that is trained.
        denominator: token column of log-probs of the policy that sampled.
    """

    phase: ClassVar[str] = "weight"

    numerator: str = "recomputed_logprob"
    denominator: str = "behaviour_logprob"

    @property
    def needs(self) -> tuple[Column, ...]:
        """The two log-probs."""
        return needed("token", self.numerator, self.denominator)

    def _ratios(self, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
        """Log-ratios, where draws begin among the tokens, and the tokens that take part."""
        known = rows.known(self.numerator) & rows.known(self.denominator)
        ratios = np.where(known, rows.values(self.numerator) - rows.values(self.denominator), 0.0)
        return ratios, rows.batch.offsets("token")[rows.batch.offsets("step")], known


@dataclass(frozen=True)
class ImportanceWeight(_Ratio):
    """weight *= the ratio of the two policies' probabilities, bounded; nothing flows through it.

    With rho the ratio of a token: `token` rho; `step` and `sequence` its product over the trained tokens of the step or
    draw, `step_geometric` and `geometric` its geometric mean; `prefix` its product up to the token; `prefix_min` rho
    times the smallest rho before it (arXiv:2601.22718). Logs are kept within 20. Sources: truncated importance
    sampling (`upper=2.0`), IcePop and ROLL, arXiv:2512.24873 (`action="mask"`, all levels), VCPO arXiv:2602.17616
    (`level="sequence", upper=8.0`), CM2 arXiv:2602.12268 (`action="veto", lower=1e-4, upper=None`).

    Args:
        level: what shares one ratio.
        action: beyond the bounds a ratio is set to the bound (`truncate`) or to 0 (`mask`), or all tokens of its draw
            are not kept (`veto`, which changes no weight).
        lower: the least ratio, above 0; None: none.
        upper: the largest ratio; None: none.
        mean_one: whether the weights are divided by their mean over the trained tokens of the batch.

    Raises:
        RecipeError: an option is out of range, or a column has no known value.

    Example:
        >>> from agentrl_core.weight import ImportanceWeight
        >>> ImportanceWeight(level="sequence", upper=8.0).needs
        (('token', 'recomputed_logprob'), ('token', 'behaviour_logprob'))
    """

    level: _Level = "token"
    action: Literal["truncate", "mask", "veto"] = "truncate"
    lower: float | None = None
    upper: float | None = 2.0
    mean_one: bool = False

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.lower is None or self.lower > 0.0, "lower", "give a number above 0, or None")
        least = self.lower or 0.0
        self.require(self.upper is None or self.upper > least, "upper", "give a number above lower, or None")
        bounded = self.action == "truncate" or self.lower is not None or self.upper is not None
        self.require(bounded, "action", "give lower or upper")
        self.require(not self.mean_one or self.action != "veto", "mean_one", 'choose another action, or "False"')

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight, or which tokens are kept."""
        return needed("token", "keep" if self.action == "veto" else "weight")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `weight` or `keep` on tokens."""
        rows = Rows(batch, "token")
        ratios, offsets, known = self._ratios(rows)
        made = importance_weights(
            ratios,
            offsets,
            level=_LEVELS[self.level],
            at_least=self.lower,
            at_most=self.upper,
            action=self.action,
            segments=batch.offsets("token") if self.level.startswith("step") else None,
            mask=known,
        )
        if self.action == "veto":
            return rows.keep((made > 0.0) | ~known)
        if self.mean_one:
            made = group.mean_one(made, rows.keys("batch"), valid=known)
        return rows.scale(np.where(known, made, 1.0))


@dataclass(frozen=True)
class TrustRegion(_Ratio):
    """Keeps tokens (or whole draws) on which the two policies are close; rejection as verl 0.9's rollout correction.

    With r the ratio, a token's divergence is k1 = -ln r (signed), k2 = (ln r)^2 / 2 or k3 = r - 1 - ln r, as
    `weight.trust_region` computes it. Draws are judged by its sum, mean or largest value over their trained tokens.

    Args:
        upper: the largest divergence that is kept.
        lower: the least one, at most `upper`; None: any.
        divergence: `k1`, `k2` or `k3`.
        aggregate: each `token` by itself, or all tokens of a draw by the `sum`, `mean` or `max`.

    Raises:
        RecipeError: `lower` is above `upper`, or a column has no known value.

    Example:
        >>> from agentrl_core.weight import TrustRegion
        >>> TrustRegion(aggregate="max", upper=0.5).makes
        (('token', 'keep'),)
    """

    upper: float = 0.1
    lower: float | None = None
    divergence: Literal["k1", "k2", "k3"] = "k3"
    aggregate: Literal["token", "sum", "mean", "max"] = "token"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.lower is None or self.lower <= self.upper, "lower", "give a number of at most upper, or None")

    @property
    def makes(self) -> tuple[Column, ...]:
        """Which tokens are kept."""
        return (("token", "keep"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `keep` on tokens."""
        rows = Rows(batch, "token")
        ratios, offsets, known = self._ratios(rows)
        kept = trust_region(
            ratios,
            offsets,
            at_most=self.upper,
            at_least=self.lower,
            divergence=self.divergence,
            aggregate=self.aggregate,
            mask=known,
        )
        return rows.keep(kept | ~known)
