"""CPGD: the log-ratio in place of the ratio, and a drift term of bounded gradient (arXiv:2505.12504).

A ratio that explodes on a negative advantage is what makes PPO's objective collapse. Inside the bounds the gradient is
A grad log p whatever the ratio is. Bounds from tight to loose along a response are those of `loss.clip.TokenClip`.
Weights by the spread of a group's scores: `GroupRelative()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import KL, ClipBounds, Policy, Surrogate, Tokens
from agentrl_core.recipes.gmpo import log_clipped
from agentrl_core.weight import SignalRescale

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LogClipped(Surrogate):
    """Clips the log-ratio, so that no ratio can explode.

        f = min(log r, log upper),   g = max(log r, log lower)

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Tokens
        >>> from agentrl_core.recipes.cpgd import LogClipped
        >>> log_ratio = torch.tensor([1.5]).log()
        >>> tokens = Tokens(log_ratio, None, {"weight_kl": torch.ones(1)})
        >>> factors = LogClipped()(tokens, log_ratio, ClipBounds(0.8, 1.2))
        >>> [factor.tolist() for factor in factors]  # log 1.2 and log 1.5
        [[0.182], [0.405]]
    """

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The clipped log-ratio of each token."""
        return log_clipped(log_ratio, bounds)


@dataclass(frozen=True)
class BoundedDrift(KL):
    """Penalises the drift from the old policy with a gradient of bounded size.

    Forward k3 has the gradient (r - 1) grad log p, r = p / q; here its factor is at most `slope_at_most`. The value of
    the term is sg(min(r - 1, slope_at_most)) log p. The estimator and the direction are given.

    Args:
        coefficient: above 0.
        slope_at_most: above 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.cpgd import BoundedDrift
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": torch.tensor([0.5, 0.2]).log()}
        >>> logprob = torch.tensor([0.55, 0.4]).log().requires_grad_()
        >>> BoundedDrift(1.0).divergence(Tokens(logprob, None, streams), "old_logprob").sum().backward()
        >>> logprob.grad.tolist()  # r - 1 is 0.1 and 1
        [0.1, 0.2]
    """

    slope_at_most: float = option(0.2, above=0)

    def check_options(self) -> None:
        """One estimator has this gradient."""
        given = ("kind", "direction", "straight_through", "at_most")
        plain = all(getattr(self, name) == getattr(KL(self.coefficient), name) for name in given)
        self.require(plain, "kind", f"this term is forward k3 as it is: leave {', '.join(given)}")

    def divergence(self, tokens: Tokens, implied: str) -> Tensor:
        """The term of each token, `[N]`, with gradient."""
        away = tokens.log_ratio_to(self.column or implied)
        return away.detach().expm1().clamp(max=self.slope_at_most) * tokens.logprob


CPGD = Recipe(
    name="cpgd",
    source="arXiv:2505.12504",
    advantage=GroupRelative(scale="none"),
    weight=SignalRescale(at_most=3.0),
    loss=Policy(surrogate=LogClipped(), drift=BoundedDrift(0.01), aggregate="sequence_mean"),
)
