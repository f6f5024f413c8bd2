"""Clip ranges: between which bounds the ratio of each token may move, as a pair of vectors or numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentrl_core._util.lazy_torch import torch
from agentrl_core.component import Column, option, token
from agentrl_core.loss.base import Part
from agentrl_core.loss.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class ClipBounds:
    """The interval of the ratio: `lower` is felt where the advantage is negative, `upper` where it is positive.

    Attributes:
        lower: number or `[N]`.
        upper: number or `[N]`.
        dual: negative advantages have an upper bound as well, number or `[N]`, or None.
        kept: `[N]`, 0 where a token has no term at all, else 1; None: all have one.
    """

    lower: Tensor | float = 0.0
    upper: Tensor | float = math.inf
    dual: Tensor | float | None = None
    kept: Tensor | None = None

    def above(self, ratio: Tensor) -> Tensor:
        """Where a positive advantage has no more to gain."""
        return ratio > self.upper

    def below(self, ratio: Tensor) -> Tensor:
        """Where a negative advantage has no more to gain, or is bounded by `dual`."""
        outside = ratio < self.lower
        return outside if self.dual is None else outside | (ratio > self.dual)

    def cut_above(self, ratio: Tensor) -> Tensor:
        """min(r, upper)."""
        return ratio.clamp(max=self.upper)

    def cut_below(self, ratio: Tensor) -> Tensor:
        """min(max(r, lower), dual)."""
        cut = ratio.clamp(min=self.lower)
        return cut if self.dual is None else cut.clamp(max=self.dual)


OPEN = ClipBounds()


@dataclass(frozen=True)
class ClipRange(Part, ABC):
    """Base of the clip ranges, which bound the ratio of each token."""

    @abstractmethod
    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:
        """The bounds of each token, without gradient."""


@dataclass(frozen=True)
class Clip(ClipRange):
    """How far the ratio r may move before the objective stops rewarding it: the same for every token.

    Args:
        low: felt where the advantage is negative; above 0. 1 - low is the lower bound (at most 1: no lower bound).
        high: felt where the advantage is positive; at least 0. 1 + high is the upper bound. Larger than `low` is the
            clip-higher of DAPO (arXiv:2503.14476).
        dual: for negative advantages the objective is bounded below by dual * A (arXiv:1912.09729); above 1,
            customarily 3. None: no such bound.
        scale: `linear`: [1 - low, 1 + high]; `reciprocal`: [1 / (1 + low), 1 + high] (LOOP's code, arXiv:2502.01600);
            `log`: [exp(-low), exp(high)] (GMPO, arXiv:2507.20673).
        center: `one`; or `proximal`: the bounds move with c = p_proximal / p_old (stream `proximal_logprob`, the
            policy at the start of the step) while r = p / p_old keeps the importance of stale or foreign data.
            `proximal` multiplies: [c (1 - low), c (1 + high)], and c dual; it is decoupled PPO (arXiv:2110.00641,
            AReaL), PPO-EWMA and the code of DOTS+RR. `proximal_shift` adds: [max(c - low, 0), c + high] (ReMix,
            arXiv:2507.06892).
            `interpolated` multiplies by a c that needs no forward pass (A-3PO, arXiv:2512.06547, as AReaL's code):
            log c = k (log p - log p_old), detached, k = (d - 1) / d with d the versions of the policy between who
            sampled the token and the iteration; 0 where d < 1 or the version is not known.
        center_at_most: tokens with a larger c have no term and count in the denominators, as AReaL's with c > 5; above
            0. None: all have one.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Clip, Tokens
        >>> Clip(high=0.28)
        Clip(high=0.28)
        >>> versions = {"iteration": torch.tensor([8.0, 8.0]), "policy_version": torch.tensor([6.0, 7.0])}
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": torch.tensor([-3.0, -3.0]), **versions}
        >>> tokens = Tokens(torch.tensor([-1.0, -1.0]), None, streams)  # two versions old: k = 1/2; one: 0
        >>> Clip(center="interpolated")(tokens, tokens.log_ratio).upper.log().tolist()  # 1 + log 1.2, log 1.2
        [1.182, 0.182]
    """

    low: float = option(0.2, above=0)
    high: float = option(0.2, at_least=0)
    dual: float | None = option(None, above=1)
    scale: Literal["linear", "reciprocal", "log"] = "linear"
    center: Literal["one", "proximal", "proximal_shift", "interpolated"] = "one"
    center_at_most: float | None = option(None, above=0)

    def check_options(self) -> None:
        """A linear lower bound is at least 0, a shift adds linear widths, and only a centre that moves is bounded."""
        self.require(self.scale != "linear" or self.low <= 1.0, "low", "give a number above 0, at most 1")
        fits = self.center != "proximal_shift" or self.scale == "linear"
        self.require(fits, "center", "proximal_shift adds low and high themselves: use scale='linear'")
        moves = self.center != "one" or self.center_at_most is None
        self.require(moves, "center_at_most", "the centre is 1: choose center='proximal' or 'interpolated', or None")

    def own_reads(self) -> Iterable[str | Column]:
        """The proximal policy's log-probs, where they are the centre; or the versions that it lies between."""
        if self.center == "one":
            return ()
        if self.center == "interpolated":
            return ("old_logprob", token("policy_version"), token("iteration"))
        return ("old_logprob", token("proximal_logprob", model="policy"))

    def interval(self) -> tuple[float, float]:
        """Lower and upper bound around 1."""
        lower = {"linear": 1.0 - self.low, "reciprocal": 1.0 / (1.0 + self.low), "log": math.exp(-self.low)}
        return lower[self.scale], math.exp(self.high) if self.scale == "log" else 1.0 + self.high

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:  # noqa: ARG002 - other bounds read it
        """The same interval around the centre for every token."""
        lower, upper = self.interval()
        if self.center == "one":
            return ClipBounds(lower, upper, self.dual)
        center = self._center(tokens)
        kept = None if self.center_at_most is None else (center <= self.center_at_most).to(center)
        if self.center == "proximal_shift":
            return ClipBounds((center - self.low).clamp(min=0.0), center + self.high, self.dual, kept)
        dual = None if self.dual is None else center * self.dual
        return ClipBounds(center * lower, center * upper, dual, kept)

    def _center(self, tokens: Tokens) -> Tensor:
        """The centre of each token: 1 where it has no old log-prob."""
        old = tokens.stream("old_logprob")
        if self.center == "interpolated":
            said = tokens.stream("policy_version")
            behind = torch.where(said < 0, 0.0, tokens.stream("iteration") - said).clamp(min=1.0)
            moved = (1.0 - 1.0 / behind) * (tokens.logprob.detach() - old)
        else:
            moved = tokens.stream("proximal_logprob") - old
        return torch.where(tokens.compared, moved, 0.0).clamp(-20.0, 20.0).exp()


@dataclass(frozen=True)
class TokenClip(ClipRange):
    """Takes the clip range of each token from columns: [1 - clip_low, 1 + clip_high] of the columns of these names.

    Args:
        dual: as of `Clip`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.loss.clip import TokenClip
        >>> streams = {"weight_kl": torch.ones(1), "clip_low": torch.tensor([0.1]), "clip_high": torch.tensor([0.3])}
        >>> bounds = TokenClip()(Tokens(torch.zeros(1), None, streams), torch.zeros(1))
        >>> bounds.lower.tolist(), bounds.upper.tolist()
        ([0.9], [1.3])
    """

    reads: ClassVar[tuple[str | Column, ...]] = (token("clip_low"), token("clip_high"))

    dual: float | None = option(None, above=1)

    def __call__(self, tokens: Tokens, log_ratio: Tensor) -> ClipBounds:  # noqa: ARG002 - other bounds read it
        """The interval of each token, from its columns."""
        return ClipBounds(1.0 - tokens.stream("clip_low"), 1.0 + tokens.stream("clip_high"), self.dual)
