"""CPGD: use the log-ratio in place of the ratio, and a drift term with a bounded gradient (arXiv:2505.12504).

    L = - mean over tokens of min(d A, clip(d, log 0.8, log 1.2) A) - 0.01 sg(min(r - 1, 0.2)) log p,   d = log r

PPO's objective collapses if a ratio explodes on a negative advantage. Here the gradient inside the clip bounds is A
grad log p for every ratio. The paper has three options for the weight of a group: division by its spread, as here; no
weight; or a larger weight the fewer groups have a spread, `advantage=GroupRelative(scale="none"),
weight=SignalRescale(at_most=3.0)`. A batch has eight optimizer steps; the clip and the drift act from the second one
on.

Equations:
    Read: the paper's sections 3.2 to 6.1, a script of its authors, their README, and public code of their laboratory.

    - 1, objective of whole responses: the paper trains its token-level form, equation 2.
    - 2, loss: `Policy`, without a divergence from a reference.
    - 2a, policy term: `LogClipped`, with the bounds of `Clip(0.2, 0.2)`.
    - 2b, advantage: `GroupRelative`, with the STD weight: std with divisor n - 1, plus 1e-6. The advantage of a group
      of one is 0 here, and its reward in the code (`singleton="raw"`).
    - 2c, policy drift: `BoundedDrift(0.01, slope_at_most=0.2)`.
    - 2d, clip-filter-like weight: an option, see above.
    - C1, loss of the code: it has the same gradient; its value omits the old log-prob.
    - 2e, tight to loose: left out: an option; the bounds of each token would be columns for
      `loss.surrogate.TokenClip`.
    - 2f, several epochs (section 6.1): left out: an option for several passes over a batch; this recipe makes one
      pass.

Differs:
    - Mean over tokens: over a prompt's responses, then over prompts, in equation 2; over all tokens of a mini-batch
      here, as in the code of the authors' laboratory.
    - Drift: bound 0.2 and weight 0.01 in the authors' sources, as here; 2 and 0.001 in the code of their laboratory.
    - Filter of groups: the authors' script keeps groups with an accuracy from 0.1 to 0.9:
      `admit=DynamicSampling(Band(at_least=0.1, at_most=0.9))`; no filter here, as in the paper.
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
    """Use the clipped log-ratio in place of the ratio, so that no ratio can explode.

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
        """Return each token's log-ratio, clipped above for positive and below for negative advantages."""
        return log_clipped(log_ratio, bounds)


@dataclass(frozen=True)
class BoundedDrift(KL):
    """Penalise the drift from the old policy with a gradient of bounded size.

    Forward k3 has the gradient (r - 1) grad log p, with r = p / q; here the factor r - 1 is at most `slope_at_most`.
    The value of the term is sg(min(r - 1, slope_at_most)) log p. The estimator and the direction of the KL cannot be
    changed.

    Args:
        coefficient: weight of the penalty, above 0.
        slope_at_most: largest factor of the gradient, above 0.

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
        """Check that the options of the KL estimator are unchanged; only forward k3 has this gradient."""
        options = ("kind", "direction", "straight_through", "at_most")
        changed = [name for name in options if getattr(self, name) != getattr(KL(self.coefficient), name)]
        self.require(
            not changed,
            next(iter(changed), "kind"),
            f"this term is always forward k3; leave {', '.join(options)} at the default",
        )

    def divergence(self, tokens: Tokens, implied: str) -> Tensor:
        """Return the drift term of each token, `[N]`, with gradient."""
        log_ratio = tokens.log_ratio_to(self.column or implied)
        return log_ratio.detach().expm1().clamp(max=self.slope_at_most) * tokens.logprob


CPGD = Recipe(
    name="cpgd",
    source="arXiv:2505.12504",
    advantage=GroupRelative(),
    loss=Policy(surrogate=LogClipped(), drift=BoundedDrift(0.01)),
    minibatches=8,
)
