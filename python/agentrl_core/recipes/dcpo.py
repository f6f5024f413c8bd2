"""DCPO: unlikely tokens have more room to move, and advantages remember a task's earlier scores (arXiv:2509.02333).

A clip range around the ratio leaves an unlikely token hardly any probability to gain. Here the range follows from |(r -
1) r p_old| <= epsilon. The loss is the sum over responses of their mean token losses, not the mean over responses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core.advantage import CumulativeStandardised
from agentrl_core.component import Column, option
from agentrl_core.loss import Bounds, ClipRange, Policy, Tokens
from agentrl_core.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ProbabilityClip(ClipRange):
    """Gives tokens that were unlikely more room to move.

    With q = p_old,

        lower = 1/2 + 1/2 sqrt(max(0, 1 - 4 low / q)),   upper = min(1/2 + 1/2 sqrt(1 + 4 high / q), at_most)

    the solutions of |(r - 1) r q| <= epsilon.

    Args:
        low: above 0.
        high: above 0.
        at_most: of the upper bound; above 1.
        dual: as of `Clip`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.dcpo import ProbabilityClip
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": torch.tensor([0.8, 0.1]).log()}
        >>> bounds = ProbabilityClip()(Tokens(torch.zeros(2), None, streams), torch.zeros(2))
        >>> bounds.lower.tolist(), bounds.upper.tolist()
        ([0.724, 0.5], [1.207, 2.0])
    """

    reads: ClassVar[tuple[str | Column, ...]] = ("old_logprob",)

    low: float = option(0.16, above=0)
    high: float = option(0.2, above=0)
    at_most: float = option(10.0, above=1)
    dual: float | None = option(10.0, above=1)

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> Bounds:  # noqa: ARG002 - other ranges read it
        """The formula of the class."""
        unlikely = (-tokens.stream("old_logprob")).clamp(max=60.0).exp()  # 1 / q
        lower = 0.5 + 0.5 * (1.0 - 4.0 * self.low * unlikely).clamp(min=0.0).sqrt()
        upper = 0.5 + 0.5 * (1.0 + 4.0 * self.high * unlikely).sqrt()
        return Bounds(lower, upper.clamp(max=self.at_most), self.dual)


DCPO = Recipe(
    name="dcpo",
    source="arXiv:2509.02333",
    advantage=CumulativeStandardised(),
    loss=Policy(clip=ProbabilityClip(), aggregate="sequence_mean_sum"),
)
