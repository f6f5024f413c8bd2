"""ASPO: weight good tokens by the inverse of their ratio, so that unlikely ones learn most (arXiv:2510.06062).

In PPO the weight of a token is its ratio. So good tokens that are already likely get the largest weight, and unlikely
ones, which have most to learn, the smallest. ASPO inverts the ratio of tokens with positive advantage and bounds it
softly. The public code also gives uncertain tokens a wider clip range, as Archer does: `EntropyClip`. A token is
uncertain if its entropy is above the 0.8-quantile of its response.

Equations:
    Read: the paper's sections 4 to 7 and its appendix B, and the public code.

    - S1, token masking: `InverseRatio` masks good tokens above the upper and bad tokens below the lower bound of
      `Clip(0.2, 0.2)`.
    - 3, weight flipping: `InverseRatio`.
    - 12, gradient of a positive token: the gradient of `InverseRatio`.
    - S3, soft dual clip: `InverseRatio(positive_at_most=3.0, negative_at_most=3.0)`.
    - C1, entropy bands: an option, `Policy(clip=EntropyClip())`.
    - C2, loss: `Policy`, mean over tokens, `KL(0.001)`.
    - B1, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it.

Differs:
    - Value of the loss: a token that the clip masks counts 0 here, and its clipped ratio in the code. A token at the
      soft bound counts the bound here, and the bound times the log-prob in the code. The gradients are equal.
    - Aggregation: equation 1 averages each response over its tokens; the paper's appendix and the code weight all
      tokens equally, as here.
    - Soft bound: the paper gives no number; 3 in the code and here.
    - Epochs: 3 in the code, not mentioned in the paper; 1 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import KL, Clip, ClipBounds, ClipRange, OverRows, Policy, Surrogate, Tokens, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class EntropyClip(OverRows, ClipRange):
    """Give uncertain tokens a wider clip range than confident ones.

    Tokens whose entropy under the current policy is above the `quantile` have the range `high`, other tokens `low`.
    Archer and ASPO use the 0.8-quantile of each response, with 0.2 below it and 0.4 above.

    Args:
        low: range of confident tokens; its dual bound applies to all tokens.
        high: range of uncertain tokens.
        quantile: quantile of entropy that separates the two kinds, between 0 and 1.
        scope: compute the quantile over each `sequence`, or over `all` given rows.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.aspo import EntropyClip
        >>> streams = {"weight_kl": torch.ones(5), "sequence": torch.zeros(5, dtype=torch.int64)}
        >>> tokens = Tokens(torch.zeros(5), torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]), streams)
        >>> EntropyClip()(tokens, torch.zeros(5)).upper.tolist()  # only the last is above the quantile, 3.2
        [1.2, 1.2, 1.2, 1.2, 1.4]
    """

    low: Clip = Clip(0.2, 0.2)  # noqa: RUF009 - frozen
    high: Clip = Clip(0.4, 0.4)  # noqa: RUF009 - frozen
    quantile: float = option(0.8, above=0, below=1)
    scope: Literal["sequence", "all"] = "sequence"

    def check_options(self) -> None:
        """Require ranges that are centred at one."""
        for name in ("low", "high"):
            self.require(getattr(self, name).center == "one", name, "give a clip with center='one'")

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:  # noqa: ARG002 - other ranges read it
        """Return the range `high` for uncertain tokens and `low` for confident ones."""
        segments = tokens.segments(self.scope)
        entropy = tokens.entropy.detach()
        uncertain = entropy > segments.spread(segments.quantile(entropy, self.quantile))
        low, high = entropy.new_tensor(self.low.interval()), entropy.new_tensor(self.high.interval())
        return ClipBounds(
            torch.where(uncertain, high[0], low[0]), torch.where(uncertain, high[1], low[1]), self.low.dual
        )


@dataclass(frozen=True)
class InverseRatio(Surrogate):
    """Weight tokens with a positive advantage by 1 / r, with soft bounds, so that unlikely ones learn most.

        f = min(1 / sg(r), positive_at_most) * r / sg(r),   0 if r > upper
        g = min(sg(r), negative_at_most) * r / sg(r),       0 if r < lower

    f applies to positive advantages and g to negative ones. The gradient is the bounded weight times grad log p.
    `Clip.dual` has no effect.

    Args:
        positive_at_most: largest weight 1 / r, above 0.
        negative_at_most: largest weight r, above 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Tokens
        >>> from agentrl_core.recipes.aspo import InverseRatio
        >>> log_ratio = torch.tensor([0.5]).log()
        >>> factors = InverseRatio()(Tokens(log_ratio, None, {"weight_kl": torch.ones(1)}), log_ratio, ClipBounds())
        >>> [factor.tolist() for factor in factors]  # 1 / r and r
        [[2.0], [0.5]]
    """

    positive_at_most: float = option(3.0, above=0)
    negative_at_most: float = option(3.0, above=0)

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return 1 / r for positive and r for negative advantages, softly bounded; 0 outside the clip range."""
        ratio = log_ratio.exp()
        fixed = ratio.detach()
        moving = ratio / fixed
        positive = moving * (1.0 / fixed).clamp(max=self.positive_at_most) * (fixed <= bounds.upper)
        return positive, moving * fixed.clamp(max=self.negative_at_most) * (fixed >= bounds.lower)


ASPO = Recipe(
    name="aspo",
    source="arXiv:2510.06062",
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.2), surrogate=InverseRatio(), kl=KL(0.001)),
    minibatches=4,
)
