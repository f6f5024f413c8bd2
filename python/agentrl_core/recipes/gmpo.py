"""GMPO: use the geometric mean of the clipped token ratios, not the arithmetic mean (arXiv:2507.20673).

    A_i = (R_i - mean(R)) / std(R),   L = - mean_i A_i exp(mean_t d_t)
    d_t = min(log r_t, 0.4) if A_i > 0, max(log r_t, -0.4) if A_i < 0

Single tokens with an extreme ratio dominate an arithmetic mean, but not a geometric mean, so the clip range can be
much wider. A batch of 128 groups of 8 has eight optimizer steps, with 128 answers each.

Equations:
    Read: the public code and script, notes and the abstract; the paper's text was not read.

    - C1, clipped log-ratios: `Clip(0.4, 0.4, scale="log")`.
    - C2, ratio of the response: `GeometricMean`.
    - C3, loss: `Policy(aggregate="sequence_mean")`.
    - C4, advantage: `GroupRelative`, std with divisor n - 1; 1e-6 is added to it here, 1e-8 in the code.

Differs:
    - Denominator: the number of rows with a trained token here; verl's `geo_mean` divides by the number of all rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column
from agentrl_core.loss import Clip, ClipBounds, Policy, Surrogate, Tokens, Unit, torch

if TYPE_CHECKING:
    from torch import Tensor


def log_clipped(log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:
    """Return two log-ratios in place of the ratio: f = min(log r, log upper), g = max(log r, log lower)."""
    lower, upper = (
        torch.as_tensor(bound, dtype=log_ratio.dtype, device=log_ratio.device).log()
        for bound in (bounds.lower, bounds.upper)
    )
    return log_ratio.clamp(max=upper), log_ratio.clamp(min=lower)


@dataclass(frozen=True)
class GeometricMean(Surrogate):
    """Average the clipped log-ratios of a segment, so that no single token dominates it.

        f = exp(mean of min(d, log upper)),   g = exp(mean of max(d, log lower))

    for every token of the segment; only the pessimistic side is clipped. The clip range of GMPO is Clip(0.4, 0.4,
    scale="log"). With `sequence_mean` the loss is - mean over sequences of A times this mean.

    Args:
        level: the segment: `sequence`, or `step`.

    Example:
        >>> import torch
        >>> from agentrl_core import loss
        >>> from agentrl_core.recipes.gmpo import GeometricMean
        >>> log_ratio = torch.tensor([1.5, 0.5]).log()
        >>> tokens = loss.Tokens(log_ratio, None, {"weight_kl": torch.ones(2), "sequence": torch.tensor([0, 0])})
        >>> bounds = loss.Clip(0.4, 0.4, scale="log")(tokens, log_ratio)
        >>> [factor.tolist() for factor in GeometricMean()(tokens, log_ratio, bounds)]
        [[0.864, 0.864], [1.003, 1.003]]
    """

    level: Literal["sequence", "step"] = "sequence"

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns to read: the ids of the segments."""
        return (self.level,)

    def own_unit(self) -> Unit:
        """Return the rows that a term depends on: `trajectory` or `step`."""
        return "trajectory" if self.level == "sequence" else "step"

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:
        """Return f and g for each token: the clipped geometric means of the token's segment."""
        segments = tokens.segments(self.level)
        positive, negative = log_clipped(log_ratio, bounds)
        return segments.spread(segments.mean(positive)).exp(), segments.spread(segments.mean(negative)).exp()


GMPO = Recipe(
    name="gmpo",
    source="arXiv:2507.20673",
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.4, 0.4, scale="log"), surrogate=GeometricMean(), aggregate="sequence_mean"),
    minibatches=8,
)
