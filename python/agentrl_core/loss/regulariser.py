"""Regularisers of the policy loss: divergences from other policies, and entropy terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.component import Column, column_name, option, token
from agentrl_core.loss.base import Part
from agentrl_core.loss.inputs import Tokens
from agentrl_core.loss.mask import Mask
from agentrl_core.loss.surrogate import OPEN

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KL(Part):
    """Penalty on the divergence of the policy from another one, q, by default estimated on the sampled tokens.

    With x = log q - log p, within +-20 (`reverse`, an estimate of KL(p || q) where p sampled), or x = log p - log q
    (`forward`, an estimate of KL(q || p) where q sampled), the estimators of http://joschu.net/blog/kl-approx.html are

        k1 = -x,   k2 = x^2 / 2,   k3 = exp(x) - x - 1,   abs = |x|

    k3 is non-negative and unbiased in its value; k2 has the gradient of the divergence. For `Policy.kl`, q is the
    reference model (stream `reference_logprob`); for `Policy.drift`, the old policy. There k2 is the squared log-ratio
    of DRO, Kimi k1.5, REP and mirror descent; forward k3 is PPO's KL(old || new); forward k1 has the gradient
    of - log p.

    Apart from the limit of x, estimates are not bounded. verl bounds k3 by 10 and has no gradient beyond, for x above
    2.61: a token fourteen times less likely under the policy than under the reference is not pulled back.
    `at_most=10` reproduces that.

    Args:
        coefficient: factor of the penalty, above 0; the column `kl_weight` multiplies it at each token.
        kind: `k1`, `k2`, `k3`, `abs`, or `full`: the model output `full_kl`, see `model.logit_statistics`.
        straight_through: combine the value of `kind` with the gradient of k2 (verl's "k3+").
        direction: `reverse` or `forward`.
        at_most: upper bound of a token's estimate, above 0, with no gradient beyond it; None: no bound.
        column: the token column with the log-probs of q, such as `proximal_logprob`; empty: the default of
            `Policy.kl` or `Policy.drift`.
        only: mask of the penalised tokens, or None for all. KL-Cov (arXiv:2505.22617) is KL(1.0, "abs",
            only=TopTokens("covariance", 2e-3, kind="floor")) as drift.

    Example:
        >>> from agentrl_core.loss import KL
        >>> KL(0.01).kind
        'k3'
    """

    coefficient: float = option(above=0)
    kind: Literal["k1", "k2", "k3", "abs", "full"] = "k3"
    straight_through: bool = False
    direction: Literal["reverse", "forward"] = "reverse"
    at_most: float | None = option(None, above=0)
    column: str = column_name("", level="token", optional=True)
    only: Mask | None = None

    def own_reads(self) -> Iterable[str | Column]:
        """Yield the columns to read: the token column `column`, if given."""
        if self.column:
            yield token(self.column)

    def own_reads_outputs(self) -> Iterable[str]:
        """The model output `full_kl`, the divergence over the whole vocabulary, for `full`."""
        return ("full_kl",) if self.kind == "full" else ()

    def divergence(self, tokens: Tokens, implied: str) -> Tensor:
        """Return the divergence estimate of each token, `[N]`, with gradient.

        Args:
            tokens: the rows.
            implied: the stream with the log-probs of q, used unless `column` names one.
        """
        ratio = tokens.log_ratio_to(self.column or implied)
        away = ratio if self.direction == "forward" else -ratio
        estimate = self.estimate(tokens, away)
        if self.at_most is not None:
            estimate = estimate.clamp(max=self.at_most)
        if self.straight_through:
            slope = away.square() / 2.0
            estimate = estimate.detach() + slope - slope.detach()
        if self.only is not None:
            estimate = estimate * self.only(tokens, ratio, OPEN)[0]
        return estimate

    def estimate(self, tokens: Tokens, away: Tensor) -> Tensor:
        """Return the divergence estimate of each token from log-ratio `away`, with gradient, not bounded or masked."""
        if self.kind == "k1":
            return -away
        if self.kind == "k2":
            return away.square() / 2.0
        if self.kind == "k3":
            return away.expm1() - away
        return away.abs() if self.kind == "abs" else tokens.output("full_kl")


@dataclass(frozen=True)
class EntropyTerm(Part, ABC):
    """Base class of terms that replace a plain entropy bonus."""

    @abstractmethod
    def __call__(self, tokens: Tokens) -> Tensor:
        """Return the term that is added to the loss, a scalar."""

    def metrics(self, tokens: Tokens) -> dict[str, Tensor]:  # noqa: ARG002 - others read it
        """Return further metrics of each row, `[N]` by name."""
        return {}
