"""Regularisers of the policy loss: divergences from other policies, and entropy terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.loss.base import Part, Unit
from agentrl_core.loss.bounds import OPEN
from agentrl_core.loss.gate import Gate, score_of
from agentrl_core.loss.tokens import Tokens
from agentrl_core.model.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KL(Part):
    """A penalty on the divergence from another policy q, estimated on the sampled tokens.

    With x = log q - log p, within +-20 (`reverse`, an estimate of KL(p || q) where p sampled), or x = log p - log q
    (`forward`, of KL(q || p) where q sampled), the estimators of http://joschu.net/blog/kl-approx.html are

        k1 = -x,   k2 = x^2 / 2,   k3 = exp(x) - x - 1,   abs = |x|

    k3 is non-negative and without bias in its value; k2's gradient is that of the divergence. As `Policy.kl` q is the
    reference model (stream `reference_logprob`), as `Policy.drift` the old policy: k2 there is the squared log-ratio
    of DRO, Kimi k1.5, REP and mirror descent; forward k3 PPO's KL(old || new); forward k1 has the gradient
    of - log p.

    Args:
        coefficient: weight of the penalty, above 0. A coefficient per token belongs into the stream `weight_kl`.
        estimator: `k1`, `k2`, `k3`, `abs`, or `full`: the model's answer `full_kl`, see `model.answers.full_kl`.
        straight_through: the value of the estimator with the gradient of k2 (verl's "k3+").
        direction: `reverse` or `forward`.
        cap: of forward k3 only: the gradient (r - 1) grad log p has at most this factor, r = p / q; the value of the
            term becomes sg(min(r - 1, cap)) log p. It is CPGD's policy drift (arXiv:2505.12504). None: no cap.
        other: the stream with the log-probs of q, such as `proximal_logprob`; None: the one that its place implies.
        only: tokens that are penalised, or None for all. KL-Cov (arXiv:2505.22617) is KL(1.0, "abs",
            only=TopShare("covariance", 2e-3, count="floor")) as drift.

    Example:
        >>> from agentrl_core.loss import KL
        >>> KL(0.01).estimator
        'k3'
    """

    coefficient: float
    estimator: Literal["k1", "k2", "k3", "abs", "full"] = "k3"
    straight_through: bool = False
    direction: Literal["reverse", "forward"] = "reverse"
    cap: float | None = None
    other: str | None = None
    only: Gate | None = None

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.coefficient > 0.0, "coefficient", "give a number above 0, or leave the penalty out: None")
        capped = self.estimator == "k3" and self.direction == "forward" and not self.straight_through
        remedy = "give a number above 0 with estimator='k3', direction='forward', or None"
        self.require(self.cap is None or (capped and self.cap > 0.0), "cap", remedy)

    @property
    def own_streams(self) -> tuple[str, ...]:
        """`other`, where it is given."""
        return () if self.other is None else (self.other,)

    @property
    def own_answers(self) -> tuple[str, ...]:
        """The divergence over the whole vocabulary, for `full`."""
        return ("full_kl",) if self.estimator == "full" else ()

    def divergence(self, tokens: Tokens, implied: str) -> Tensor:
        """The estimate of each token, `[N]`, with gradient.

        Args:
            tokens: the rows.
            implied: the stream with the log-probs of q, unless `other` names one.
        """
        ratio = tokens.log_ratio_to(self.other or implied)
        away = ratio if self.direction == "forward" else -ratio
        value = self._capped(tokens, away) if self.cap is not None else self._estimate(tokens, away)
        if self.straight_through:
            slope = away.square() / 2.0
            value = value.detach() + slope - slope.detach()
        if self.only is not None:
            value = value * self.only(tokens, ratio, OPEN)[0]
        return value

    def _estimate(self, tokens: Tokens, away: Tensor) -> Tensor:
        if self.estimator == "k1":
            return -away
        if self.estimator == "k2":
            return away.square() / 2.0
        if self.estimator == "k3":
            return away.expm1() - away
        return away.abs() if self.estimator == "abs" else tokens.answer("full_kl")

    def _capped(self, tokens: Tokens, away: Tensor) -> Tensor:
        return away.detach().expm1().clamp(max=self.cap) * tokens.logprob


@dataclass(frozen=True)
class EntropyTerm(Part, ABC):
    """Base of what may stand in place of a plain entropy bonus."""

    @abstractmethod
    def __call__(self, tokens: Tokens) -> Tensor:
        """The term of the loss, a scalar."""


@dataclass(frozen=True)
class EntropyBand(EntropyTerm):
    """EPO: an entropy bonus, and a penalty for leaving the band of past entropies (arXiv:2509.22576).

        L = - coefficient * sum of w (H - smoothing P)

    With h the mean entropy of past epochs at the token's step (stream `entropy_history`; 0 where there is none, and
    then P = 0): `hinge`: P = max(0, low h - H) + max(0, H - high h). `indicator`: P = 0 inside (low h, high h), else
    `outside`; this is the public code, and has no gradient.

    Args:
        coefficient: above 0.
        smoothing: weight of the penalty, at least 0; the paper's phases are a schedule of it.
        low: at least 0.
        high: above `low`.
        kind: `hinge` or `indicator`.
        outside: of `indicator`, above 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import EntropyBand, Tokens
        >>> one, history = torch.ones(1), torch.tensor([0.4])
        >>> streams = {"weight_kl": one, "weight_entropy": one, "entropy_history": history}
        >>> EntropyBand(0.1)(Tokens(torch.zeros(1), one, streams)).item()  # -0.1 (1 - 0.2)
        -0.08
    """

    coefficient: float = 0.001
    smoothing: float = 1.0
    low: float = 0.0
    high: float = 2.0
    kind: Literal["hinge", "indicator"] = "hinge"
    outside: float = 0.1

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.coefficient > 0.0, "coefficient", "give a number above 0")
        self.require(self.smoothing >= 0.0, "smoothing", "give a number of at least 0")
        self.require(0.0 <= self.low < self.high, "low", "give 0 <= low < high")
        self.require(self.outside > 0.0, "outside", "give a number above 0")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Weights and past entropies."""
        return ("weight_entropy", "entropy_history")

    def __call__(self, tokens: Tokens) -> Tensor:
        """The formula of the class."""
        history = tokens.stream("entropy_history")
        below, above = self.low * history - tokens.entropy, tokens.entropy - self.high * history
        if self.kind == "hinge":
            penalty = below.clamp(min=0.0) + above.clamp(min=0.0)
        else:
            penalty = self.outside * ((below >= 0) | (above >= 0)).to(history)
        penalty = torch.where(history > 0, penalty, 0.0)
        return -self.coefficient * (tokens.stream("weight_entropy") * (tokens.entropy - self.smoothing * penalty)).sum()


@dataclass(frozen=True)
class CovarianceEntropy(EntropyTerm):
    """Light-IF's TEA-RL: an entropy bonus where advantage and log-prob co-vary within a response.

        L = - coefficient * sum of w c H,   c = clip(10 softmax over the response of cov, 0, 5)

    with cov = (A - mean A) (log p - mean log p) over the rows given; c is detached.

    Args:
        coefficient: above 0.
        scale: of the softmax, above 0.
        most: upper bound of c, above 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import CovarianceEntropy, Tokens
        >>> streams = {"weight_kl": torch.ones(2), "weight_entropy": torch.ones(2), "sequence": torch.tensor([0, 0])}
        >>> streams |= {"advantage_positive": torch.tensor([1.0, 0.0]), "advantage_negative": torch.tensor([0.0, -1.0])}
        >>> tokens = Tokens(torch.tensor([-1.0, -3.0]), torch.ones(2), streams)  # both co-vary by 1: c = 10 / 2
        >>> CovarianceEntropy(0.1)(tokens).item()
        -1.0
    """

    coefficient: float = 0.001
    scale: float = 10.0
    most: float = 5.0

    def check_options(self) -> None:
        """Ranges as documented."""
        for name in ("coefficient", "scale", "most"):
            self.require(getattr(self, name) > 0.0, name, "give a number above 0")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Weights and sequence ids."""
        return ("weight_entropy", "sequence")

    @property
    def own_unit(self) -> Unit:
        """The update: the covariance's means are over all rows."""
        return "update"

    @property
    def own_foldable(self) -> bool:
        """No."""
        return False

    @property
    def own_separable(self) -> bool:
        """No."""
        return False

    def __call__(self, tokens: Tokens) -> Tensor:
        """The formula of the class."""
        softmax = tokens.segments("sequence").log_softmax(score_of(tokens, "covariance")).exp()
        share = (self.scale * softmax).clamp(max=self.most)
        return -self.coefficient * (tokens.stream("weight_entropy") * share * tokens.entropy).sum()


@dataclass(frozen=True)
class EntropyAnchor(EntropyTerm):
    """SIREN: the entropy of likely tokens at uncertain places is held at its first value (arXiv:2509.25133).

        L = coefficient * (mean over responses of the mean over peaks of H - anchor)^2

    H is the model's answer `top_p_entropy` (see `model.answers`); the peaks of a response are its tokens with
    H above its `quantile`; responses without a peak do not count. The square is of all rows of the update, not of each
    pack (`Update.together`); it is not weighted, and 0 without any peak.

    Args:
        coefficient: above 0.
        anchor: the mean of the first policy, at least 0: the metric `peak_entropy` of the first update.
        quantile: between 0 and 1.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from agentrl_core.loss import EntropyAnchor, Tokens
        >>> streams = {"weight_kl": torch.ones(5), "sequence": torch.zeros(5, dtype=torch.int64)}
        >>> answers = SimpleNamespace(top_p_entropy=torch.tensor([0.0, 3.0, 0.0, 0.0, 0.0]))
        >>> EntropyAnchor()(Tokens(torch.zeros(5), None, streams, answers)).item()  # 0.005 (3 - 1)^2
        0.02
    """

    coefficient: float = 0.005
    anchor: float = 1.0
    quantile: float = 0.8

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.coefficient > 0.0, "coefficient", "give a number above 0")
        self.require(self.anchor >= 0.0, "anchor", "give a number of at least 0")
        self.require(0.0 < self.quantile < 1.0, "quantile", "give a number between 0 and 1")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Sequence ids."""
        return ("sequence",)

    @property
    def own_answers(self) -> tuple[str, ...]:
        """The truncated entropy."""
        return ("top_p_entropy",)

    @property
    def own_unit(self) -> Unit:
        """The update: the mean that is squared is over all responses."""
        return "update"

    @property
    def own_foldable(self) -> bool:
        """No."""
        return False

    @property
    def own_separable(self) -> bool:
        """No."""
        return False

    def peak_entropy(self, tokens: Tokens) -> Tensor:
        """The mean that is anchored, a scalar with gradient; without any peak the anchor."""
        responses = tokens.segments("sequence")
        entropy = tokens.answer("top_p_entropy")
        peak = tokens.trained & (entropy > responses.spread(responses.quantile(entropy, self.quantile)))
        count = responses.sum(peak.to(entropy))
        mean = responses.sum(torch.where(peak, entropy, 0.0)) / count.clamp(min=1.0)
        # Without any peak the anchor itself, so that the term is 0.
        return torch.where(count.any(), mean.sum() / (count > 0).sum().clamp(min=1), self.anchor)

    def __call__(self, tokens: Tokens) -> Tensor:
        """The formula of the class."""
        return self.coefficient * (self.peak_entropy(tokens) - self.anchor).square()
