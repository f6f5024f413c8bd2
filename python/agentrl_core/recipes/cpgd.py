"""CPGD: the log-ratio in place of the ratio, and a drift term of bounded gradient (arXiv:2505.12504).

    L = - mean over tokens of min(d A, clip(d, log 0.8, log 1.2) A) - 0.01 sg(min(r - 1, 0.2)) log p,   d = log r

A ratio that explodes on a negative advantage is what makes PPO's objective collapse. Inside the bounds the gradient is
A grad log p whatever the ratio is. The paper has three weights of a group: its spread, as here; none; or more the fewer
groups have a spread, `advantage=GroupRelative(scale="none"), weight=SignalRescale(at_most=3.0)`. A batch has eight
optimizer steps: the clip and the drift act from the second one on.

Equations:
    Read: the paper's sections 3.2 to 6.1, a script of its authors, their README, and public code of their laboratory.

    - 1, objective of whole responses: equation 2 is what the paper trains, token by token.
    - 2, loss: `Policy`, no divergence from a reference.
    - 2a, policy term: `LogClipped`, by the bounds of `Clip(0.2, 0.2)`.
    - 2b, advantage: `GroupRelative`, with the STD weight: std of n - 1 and 1e-6 added to it; a group of one is 0 here,
      and its reward in the code (`singleton="raw"`).
    - 2c, policy drift: `BoundedDrift(0.01, slope_at_most=0.2)`.
    - 2d, clip-filter-like weight: an option, as above.
    - C1, loss of the code: the same gradient; its value leaves out the old log-prob.
    - 2e, tight to loose: left out: an option; the bounds of each token would be columns for `loss.surrogate.TokenClip`.
    - 2f, several epochs (section 6.1): left out: an option for more than one pass over a batch, of which there is one.

Differs:
    - Mean over tokens: of a prompt's responses, then over prompts, in equation 2; over all tokens of a mini-batch here,
      as in the code of the authors' laboratory.
    - Drift: at most 0.2 and weight 0.01 by the authors, as here; 2 and 0.001 in the code of their laboratory.
    - Filter of groups: the authors' script keeps groups of an accuracy from 0.1 to 0.9:
      `admit=DynamicSampling(Band(at_least=0.1, at_most=0.9))`; none here, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import KL, ClipBounds, Policy, Surrogate, Tokens
from agentrl_core.recipes.gmpo import log_clipped

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
    advantage=GroupRelative(),
    loss=Policy(surrogate=LogClipped(), drift=BoundedDrift(0.01)),
    minibatches=8,
)
