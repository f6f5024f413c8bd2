"""Surrogates: what a token's objective is, given its ratio and its bounds.

All are linear in the advantage on either side of zero, so each is a pair of vectors `(f, g)` and the loss of every one
of them is the same sum: - sum of (A_positive f + A_negative g), with the weights inside the two advantages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.loss.base import Part, Unit
from agentrl_core.loss.bounds import Bounds
from agentrl_core.loss.ratio import Mixture, mixture
from agentrl_core.loss.tokens import Tokens
from agentrl_core.model.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor

Factors = tuple["Tensor", "Tensor"]


@dataclass(frozen=True)
class Surrogate(Part, ABC):
    """Base of the surrogates."""

    @abstractmethod
    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> Factors:
        """What multiplies a positive advantage, and what a negative one: two `[N]` vectors to be maximised."""


@dataclass(frozen=True)
class Clipped(Surrogate):
    """PPO (arXiv:1707.06347): f = min(r, upper), g = min(max(r, lower), dual). Outside, the gradient is zero.

    Args:
        soft: `upper`: above the upper bound f = upper * r / sg(r), the value of the bound with the gradient
            upper * grad log p (AEPO, arXiv:2510.14545); `both`: below the lower bound g = lower * r / sg(r) as well.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Bounds, Clipped, Tokens
        >>> log_ratio = torch.tensor([1.5]).log()
        >>> factors = Clipped()(Tokens(log_ratio, None, {"weight_kl": torch.ones(1)}), log_ratio, Bounds(0.8, 1.2))
        >>> [factor.tolist() for factor in factors]
        [[1.2], [1.5]]
    """

    soft: Literal["none", "upper", "both"] = "none"

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> Factors:  # noqa: ARG002
        """The formula of the class."""
        ratio = log_ratio.exp()
        positive, negative = bounds.cut_above(ratio), bounds.cut_below(ratio)
        moving = ratio / ratio.detach()  # 1, with the gradient of log p
        if self.soft != "none":
            positive = torch.where(bounds.above(ratio), positive.detach() * moving, positive)
        if self.soft == "both":
            negative = torch.where(bounds.below(ratio), negative.detach() * moving, negative)
        return positive, negative


@dataclass(frozen=True)
class Flipped(Surrogate):
    """ASPO (arXiv:2510.06062): good tokens count by 1 / r, so that the unlikely ones learn most, and caps are soft.

        f = min(1 / sg(r), positive_cap) * r / sg(r),   0 where r > upper
        g = min(sg(r), negative_cap) * r / sg(r),       0 where r < lower

    Gradients are those weights times grad log p. `Clip.dual` has no part in it.

    Args:
        positive_cap: above 0.
        negative_cap: above 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Bounds, Flipped, Tokens
        >>> log_ratio = torch.tensor([0.5]).log()
        >>> factors = Flipped()(Tokens(log_ratio, None, {"weight_kl": torch.ones(1)}), log_ratio, Bounds())
        >>> [factor.tolist() for factor in factors]  # 1 / r and r
        [[2.0], [0.5]]
    """

    positive_cap: float = 3.0
    negative_cap: float = 3.0

    def check_options(self) -> None:
        """Ranges as documented."""
        for name in ("positive_cap", "negative_cap"):
            self.require(getattr(self, name) > 0.0, name, "give a number above 0")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> Factors:  # noqa: ARG002
        """The formula of the class."""
        ratio = log_ratio.exp()
        fixed = ratio.detach()
        moving = ratio / fixed
        positive = moving * (1.0 / fixed).clamp(max=self.positive_cap) * (fixed <= bounds.upper)
        return positive, moving * fixed.clamp(max=self.negative_cap) * (fixed >= bounds.lower)


@dataclass(frozen=True)
class Quadratic(Surrogate):
    """Simple policy optimisation (arXiv:2401.16025): a quadratic penalty in place of the clip.

        r A - |A| (r - 1)^2 / (2 epsilon)

    with epsilon = upper - 1 for positive and 1 - lower for negative advantages: the best ratio is the bound itself,
    and beyond it the gradient pulls back. Give both bounds a width.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Bounds, Quadratic, Tokens
        >>> log_ratio = torch.tensor([1.2]).log()
        >>> factors = Quadratic()(Tokens(log_ratio, None, {"weight_kl": torch.ones(1)}), log_ratio, Bounds(0.8, 1.2))
        >>> [factor.tolist() for factor in factors]  # 1.2 -+ 0.2^2 / 0.4
        [[1.1], [1.3]]
    """

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> Factors:  # noqa: ARG002
        """The formula of the class."""
        ratio = log_ratio.exp()
        half = (ratio - 1.0).square() / 2.0
        return ratio - half / (bounds.upper - 1.0), ratio + half / (1.0 - bounds.lower)


@dataclass(frozen=True)
class LogClipped(Surrogate):
    """CPGD (arXiv:2505.12504): the log-ratio in place of the ratio.

        f = min(log r, log upper),   g = max(log r, log lower)

    The gradient inside the bounds is A grad log p whatever the ratio is, so no ratio can explode. See also `KL.cap`
    for the drift term.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Bounds, LogClipped, Tokens
        >>> log_ratio = torch.tensor([1.5]).log()
        >>> factors = LogClipped()(Tokens(log_ratio, None, {"weight_kl": torch.ones(1)}), log_ratio, Bounds(0.8, 1.2))
        >>> [factor.tolist() for factor in factors]  # log 1.2 and log 1.5
        [[0.182], [0.405]]
    """

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> Factors:  # noqa: ARG002
        """The formula of the class."""
        return log_clipped(log_ratio, bounds)


@dataclass(frozen=True)
class Smooth(Surrogate):
    """SAPO (arXiv:2511.20347): a sigmoid gate in place of the clip: 4 / t sigmoid(t (r - 1)).

    At r = 1 its slope is that of r; away from 1 it falls off smoothly.

    Args:
        positive: t for positive advantages, above 0.
        negative: t for negative ones, above 0; larger, because their gradients spread over the vocabulary.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Bounds, Smooth, Tokens
        >>> log_ratio = torch.tensor([1.0]).log()
        >>> factors = Smooth()(Tokens(log_ratio, None, {"weight_kl": torch.ones(1)}), log_ratio, Bounds())
        >>> [factor.tolist() for factor in factors]  # 2 / t
        [[2.0], [1.905]]
    """

    positive: float = 1.0
    negative: float = 1.05

    def check_options(self) -> None:
        """Ranges as documented."""
        for name in ("positive", "negative"):
            self.require(getattr(self, name) > 0.0, name, "give a number above 0")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> Factors:  # noqa: ARG002
        """The formula of the class."""
        away = log_ratio.exp() - 1.0
        return (
            torch.sigmoid(self.positive * away) * (4.0 / self.positive),
            torch.sigmoid(self.negative * away) * (4.0 / self.negative),
        )


@dataclass(frozen=True)
class GeometricMean(Surrogate):
    """GMPO (arXiv:2507.20673): token log-ratios are clipped, then averaged over the segment, then exponentiated.

        f = exp(mean of min(d, log upper)),   g = exp(mean of max(d, log lower))

    for every token of the segment; only the pessimistic side is cut. Its default bounds are Clip(0.4, 0.4,
    scale="log"). With `sequence_mean` the loss is - mean over sequences of A times this mean.

    Args:
        level: `sequence`, or `step`.

    Example:
        >>> import torch
        >>> from agentrl_core import loss
        >>> log_ratio = torch.tensor([1.5, 0.5]).log()
        >>> tokens = loss.Tokens(log_ratio, None, {"weight_kl": torch.ones(2), "sequence": torch.tensor([0, 0])})
        >>> bounds = loss.Clip(0.4, 0.4, scale="log")(tokens, log_ratio)
        >>> [factor.tolist() for factor in loss.GeometricMean()(tokens, log_ratio, bounds)]
        [[0.864, 0.864], [1.003, 1.003]]
    """

    level: Literal["sequence", "step"] = "sequence"

    @property
    def own_streams(self) -> tuple[str, ...]:
        """The ids of the segments."""
        return (self.level,)

    @property
    def own_unit(self) -> Unit:
        """The segment."""
        return "trajectory" if self.level == "sequence" else "step"

    @property
    def own_foldable(self) -> bool:
        """No."""
        return False

    @property
    def own_separable(self) -> bool:
        """No."""
        return False

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> Factors:
        """The formula of the class."""
        segments = tokens.segments(self.level)
        positive, negative = log_clipped(log_ratio, bounds)
        return segments.spread(segments.mean(positive)).exp(), segments.spread(segments.mean(negative)).exp()


@dataclass(frozen=True)
class Reinforce(Surrogate):
    """REINFORCE with a detached weight: f = sg(w) log p. The loss's gradient is - A w grad log p.

    Weights: `one` (REINFORCE, ReMax, GPG; with a gate REC without importance sampling); `ratio`: min(r, cap)
    (DPPO arXiv:2602.04879, MiniRL arXiv:2512.01374, RAPID); `clamped`: min(max(r, lower), upper) (CISPO
    arXiv:2506.13585; with Clip(1, 0), which is [0, 1], truncated importance sampling). TOPR (arXiv:2503.14286) is
    positive="one", negative="clamped" with Clip(1, 0).

    Args:
        positive: weight of tokens with a positive advantage.
        negative: weight of tokens with a negative advantage.
        cap: of `ratio`, above 0; None: the ratio is limited to exp(20) only.

    Example:
        >>> from agentrl_core import loss
        >>> cispo = loss.Policy(clip=loss.Clip(1.0, 0.28), surrogate=loss.Reinforce("clamped", "clamped"))
        >>> cispo.foldable
        True
    """

    positive: Literal["one", "ratio", "clamped"] = "one"
    negative: Literal["one", "ratio", "clamped"] = "one"
    cap: float | None = None

    def check_options(self) -> None:
        """Ranges as documented."""
        used = "ratio" in (self.positive, self.negative)
        fits = self.cap is None or (used and self.cap > 0.0)
        self.require(fits, "cap", "give a number above 0 and use it with 'ratio', or None")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> Factors:
        """The formula of the class."""
        ratio = log_ratio.detach().exp()
        weights = {
            "one": torch.ones_like(ratio),
            "ratio": ratio if self.cap is None else ratio.clamp(max=self.cap),
            "clamped": bounds.cut_above(ratio).clamp(min=bounds.lower),
        }
        return weights[self.positive] * tokens.logprob, weights[self.negative] * tokens.logprob


@dataclass(frozen=True)
class Expert(Surrogate):
    """What stands in for the surrogate on tokens that another policy wrote, whose probabilities are not known.

    The stream `expert` is 1 on them. `shaped`: f = g = p / (p + shape), whose gradient
    shape / (p + shape)^2 grad p favours what the policy finds unlikely (LUFFY arXiv:2504.14945, ICPO, AMPO,
    SCOPE). `mixture`: f = g = the ratio of `Mixture` (RL-PLUS arXiv:2508.00222). Neither is clipped.

    Args:
        kind: `shaped` or `mixture`.
        shape: of `shaped`, above 0: 0.1 in the public codes, 0.01 in ICPO's paper.
        share: of `mixture`, see `Mixture`.
        prior: of `mixture`, see `Mixture`.
        exploration: both are multiplied by sg(1 - p)^exploration, at least 0; RL-PLUS takes 0.5.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Bounds, Expert, Tokens
        >>> tokens = Tokens(torch.tensor([0.1]).log(), None, {"weight_kl": torch.ones(1)})
        >>> Expert(shape=0.1)(tokens, torch.zeros(1), Bounds())[0].tolist()
        [0.5]
    """

    kind: Literal["shaped", "mixture"] = "shaped"
    shape: float = 0.1
    share: float = 0.25
    prior: float | None = 1.0
    exploration: float = 0.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.shape > 0.0, "shape", "give a number above 0")
        self.require(self.exploration >= 0.0, "exploration", "give a number of at least 0")
        Mixture(self.share, self.prior)

    @property
    def own_streams(self) -> tuple[str, ...]:
        """The flag, and what the mixture reads."""
        mixture = Mixture(self.share, self.prior).own_streams if self.kind == "mixture" else ()
        return (*mixture, "expert")

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: Bounds) -> Factors:  # noqa: ARG002
        """The formula of the class."""
        probability = tokens.logprob.exp()
        if self.kind == "shaped":
            factor = probability / (probability + self.shape)
        else:
            factor = mixture(tokens, self.share, self.prior).exp()
        factor = factor * (1.0 - probability.detach()).clamp(min=0.0).pow(self.exploration)
        return factor, factor


def log_clipped(log_ratio: Tensor, bounds: Bounds) -> Factors:
    """The factors of `LogClipped`."""
    lower, upper = (
        torch.as_tensor(bound, dtype=log_ratio.dtype, device=log_ratio.device).log()
        for bound in (bounds.lower, bounds.upper)
    )
    return log_ratio.clamp(max=upper), log_ratio.clamp(min=lower)
