"""Regularisers of the policy loss: divergences from other policies, and entropy terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.component import Column, column_name, option, token
from agentrl_core.loss.base import Part
from agentrl_core.loss.mask import Mask
from agentrl_core.loss.surrogate import OPEN
from agentrl_core.loss.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KL(Part):
    """Keeps the policy near another one, q: a penalty on their divergence, estimated on the sampled tokens.

    With x = log q - log p, within +-20 (`reverse`, an estimate of KL(p || q) where p sampled), or x = log p - log q
    (`forward`, of KL(q || p) where q sampled), the estimators of http://joschu.net/blog/kl-approx.html are

        k1 = -x,   k2 = x^2 / 2,   k3 = exp(x) - x - 1,   abs = |x|

    k3 is non-negative and without bias in its value; k2's gradient is that of the divergence. As `Policy.kl` q is the
    reference model (stream `reference_logprob`), as `Policy.drift` the old policy: k2 there is the squared log-ratio
    of DRO, Kimi k1.5, REP and mirror descent; forward k3 PPO's KL(old || new); forward k1 has the gradient
    of - log p.

    An estimate is not bounded, but for x within +-20. verl's k3 is at most 10 and has no gradient beyond, where x is
    above 2.61: a token that the policy finds fourteen times less likely than the reference is not pulled back there. It
    is `at_most=10`.

    Args:
        coefficient: of the penalty, above 0. Its factor at a token is the column `kl_weight`.
        kind: `k1`, `k2`, `k3`, `abs`, or `full`: the model's answer `full_kl`, see `model.answers`.
        straight_through: the value of the kind with the gradient of k2 (verl's "k3+").
        direction: `reverse` or `forward`.
        at_most: upper bound of the estimate of a token, above 0; beyond it there is no gradient. None: none.
        column: the token column with the log-probs of q, such as `proximal_logprob`; empty: the one that its place
            implies.
        only: tokens that are penalised, or None for all. KL-Cov (arXiv:2505.22617) is KL(1.0, "abs",
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
        """`column`, where it is given."""
        if self.column:
            yield token(self.column)

    def own_reads_outputs(self) -> Iterable[str]:
        """The divergence over the whole vocabulary, for `full`."""
        return ("full_kl",) if self.kind == "full" else ()

    def divergence(self, tokens: Tokens, implied: str) -> Tensor:
        """The estimate of each token, `[N]`, with gradient.

        Args:
            tokens: the rows.
            implied: the stream with the log-probs of q, unless `column` names one.
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
        """The estimate of each token from x, `[N]`, with gradient."""
        if self.kind == "k1":
            return -away
        if self.kind == "k2":
            return away.square() / 2.0
        if self.kind == "k3":
            return away.expm1() - away
        return away.abs() if self.kind == "abs" else tokens.output("full_kl")


@dataclass(frozen=True)
class EntropyTerm(Part, ABC):
    """Base of what may stand in place of a plain entropy bonus."""

    @abstractmethod
    def __call__(self, tokens: Tokens) -> Tensor:
        """The term of the loss, a scalar."""

    def metrics(self, tokens: Tokens) -> dict[str, Tensor]:  # noqa: ARG002 - others read it
        """Metrics of each row, `[N]` by name, beside those of the loss."""
        return {}
