"""Surrogates: what a token's objective is, given its ratio and its bounds.

All are linear in the advantage on either side of zero, so each is a pair of vectors `(f, g)` and the loss of every one
of them is the same sum: - sum of (A_positive f + A_negative g), with the weights inside the two advantages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core._util.lazy_torch import torch
from agentrl_core.component import option
from agentrl_core.loss.base import Part
from agentrl_core.loss.clip import ClipBounds
from agentrl_core.loss.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor

Factors = tuple["Tensor", "Tensor"]


@dataclass(frozen=True)
class Surrogate(Part, ABC):
    """Base of the surrogates: what a loss maximises times the advantage, such as a clipped ratio."""

    @abstractmethod
    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> Factors:
        """Return the factors of a positive and of a negative advantage: two `[N]` vectors to be maximised."""


@dataclass(frozen=True)
class Clipped(Surrogate):
    """Stops rewarding a token once its ratio has left the clip range: PPO, arXiv:1707.06347.

    f = min(r, upper), g = min(max(r, lower), dual). Outside, the gradient is zero.

    Args:
        soft: `upper`: above the upper bound f = upper * r / sg(r), the value of the bound with the gradient
            upper * grad log p (AEPO, arXiv:2510.14545); `both`: below the lower bound g = lower * r / sg(r) as well.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Clipped, Tokens
        >>> log_ratio = torch.tensor([1.5]).log()
        >>> factors = Clipped()(Tokens(log_ratio, None, {"weight_kl": torch.ones(1)}), log_ratio, ClipBounds(0.8, 1.2))
        >>> [factor.tolist() for factor in factors]
        [[1.2], [1.5]]
    """

    soft: Literal["none", "upper", "both"] = "none"

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> Factors:  # noqa: ARG002
        """The ratio, held by the bounds on the side where going further would be rewarded."""
        ratio = log_ratio.exp()
        positive, negative = bounds.cut_above(ratio), bounds.cut_below(ratio)
        moving = ratio / ratio.detach()  # 1, with the gradient of log p
        if self.soft != "none":
            positive = torch.where(bounds.above(ratio), positive.detach() * moving, positive)
        if self.soft == "both":
            negative = torch.where(bounds.below(ratio), negative.detach() * moving, negative)
        return positive, negative


@dataclass(frozen=True)
class Reinforce(Surrogate):
    """Plain policy gradient without a ratio's gradient: REINFORCE with a detached weight.

    f = sg(w) log p. The loss's gradient is - A w grad log p.

    Weights: `one` (REINFORCE, ReMax, GPG; with a mask REC without importance sampling); `ratio`: min(r, at_most)
    (DPPO arXiv:2602.04879, MiniRL arXiv:2512.01374, RAPID); `clamped`: min(max(r, lower), upper) (CISPO
    arXiv:2506.13585; with Clip(1, 0), which is [0, 1], truncated importance sampling). TOPR (arXiv:2503.14286) is
    positive="one", negative="clamped" with Clip(1, 0).

    Args:
        positive: weight of tokens with a positive advantage.
        negative: weight of tokens with a negative advantage.
        at_most: of `ratio`, above 0; None: the ratio is limited to exp(20) only.

    Example:
        >>> from agentrl_core import loss
        >>> cispo = loss.Policy(clip=loss.Clip(1.0, 0.28), surrogate=loss.Reinforce("clamped", "clamped"))
        >>> cispo.foldable
        True
    """

    positive: Literal["one", "ratio", "clamped"] = "one"
    negative: Literal["one", "ratio", "clamped"] = "one"
    at_most: float | None = option(None, above=0)

    def check_options(self) -> None:
        """`at_most` needs a ratio."""
        used = self.at_most is None or "ratio" in (self.positive, self.negative)
        self.require(used, "at_most", "use it with 'ratio', or give None")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> Factors:
        """The log-prob of each token, times a detached factor."""
        ratio = log_ratio.detach().exp()
        weights = {
            "one": torch.ones_like(ratio),
            "ratio": ratio if self.at_most is None else ratio.clamp(max=self.at_most),
            "clamped": bounds.cut_above(ratio).clamp(min=bounds.lower),
        }
        return weights[self.positive] * tokens.logprob, weights[self.negative] * tokens.logprob


@dataclass(frozen=True)
class Expert(Surrogate):
    """Stands in for the surrogate on tokens that another policy wrote, whose probabilities are not known.

        f = g = p / (p + shape)

    Its gradient, shape / (p + shape)^2 grad p, favours what the policy finds unlikely (LUFFY arXiv:2504.14945, ICPO,
    AMPO, SCOPE). It is not clipped. The stream `expert` is 1 on such tokens.

    Args:
        shape: above 0: 0.1 in the public codes, 0.01 in ICPO's paper.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Expert, Tokens
        >>> tokens = Tokens(torch.tensor([0.1]).log(), None, {"weight_kl": torch.ones(1)})
        >>> Expert(shape=0.1)(tokens, torch.zeros(1), ClipBounds())[0].tolist()
        [0.5]
    """

    shape: float = option(0.1, above=0)

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> Factors:  # noqa: ARG002
        """The shaped probability of each token, in place of a ratio."""
        probability = tokens.logprob.exp()
        factor = probability / (probability + self.shape)
        return factor, factor
