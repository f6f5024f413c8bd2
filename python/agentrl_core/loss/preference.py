"""Losses on a better and a worse answer to the same question."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentrl_core._util.lazy_torch import functional, torch
from agentrl_core.component import Column, option
from agentrl_core.loss.base import ADVANTAGES, REFERENCE, Unit, WeightedLoss, metric_sums
from agentrl_core.loss.inputs import LOG_RATIO_LIMIT, Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PairLoss(WeightedLoss):
    """Base class of losses on pairs. The weight of a pair is the sum of the weights of its rows.

    With `sequence_mean` over both members, the loss is the mean over pairs.
    """

    reads: ClassVar[tuple[str | Column, ...]] = (*ADVANTAGES, "weight_kl", "sequence", "pair")
    over: ClassVar[Unit] = "pair"


@dataclass(frozen=True)
class Preference(PairLoss):
    """Trains on pairs without a reward model, like DPO: the answer with the higher advantage is preferred.

    With x = sum over an answer of log p - log q and m = g(x_chosen) - g(x_rejected), a pair costs

        `logistic`: - (1 - smoothing) log sigmoid(beta m) - smoothing log sigmoid(-beta m)   DPO, arXiv:2305.18290
        `square`:   (m - 1 / (2 beta))^2                                                     IPO, arXiv:2310.12036
        `hinge`:    max(0, 1 - beta m)                                                       SLiC, arXiv:2305.10425

    g is the divergence's f'(p / q) up to a constant (f-DPO, arXiv:2309.16240): `reverse_kl`: x (DPO); `forward_kl`:
    -exp(-x); `js`: log 2 - log(1 + exp(-x)); `alpha`: -exp(-alpha x) / alpha.

    log q = reference_share * log p_reference + (1 - reference_share) * log p_old. INPO (arXiv:2407.00617) is `square`
    with beta = eta and reference_share = tau / eta. TR-DPO is DPO with a reference that moves.

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.
        kind: `logistic`, `square` or `hinge`, see above.
        beta: factor of the margin, above 0.
        divergence: choice of g, see above.
        alpha: exponent for `divergence="alpha"`, between 0 and 1.
        reference_share: share of the reference model in log q, from 0 to 1.
        reduce: x is the `sum` or the `mean` over the tokens of an answer.
        smoothing: assumed rate of wrong labels for `logistic`, at least 0, below 1/2.

    Metrics: `margin` (beta m) and `accuracy` (m > 0), for every row the value of its pair.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Preference(beta=0.1).unit
        'pair'
    """

    kind: Literal["logistic", "square", "hinge"] = "logistic"
    beta: float = option(0.1, above=0)
    divergence: Literal["reverse_kl", "forward_kl", "js", "alpha"] = "reverse_kl"
    alpha: float = option(0.5, above=0, below=1)
    reference_share: float = option(1.0, at_least=0, at_most=1)
    reduce: Literal["sum", "mean"] = "sum"
    smoothing: float = option(0.0, at_least=0, below=0.5)

    def own_reads(self) -> Iterable[str | Column]:
        """Yield the columns to read: those of every pair loss, and the reference and old log-probs that are mixed."""
        yield from self.reads
        if self.reference_share > 0.0:
            yield REFERENCE
        if self.reference_share < 1.0:
            yield "old_logprob"

    @property
    def needs_preference(self) -> bool:
        """True: a pair with equal advantages has no preferred answer."""
        return True

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cost of each pair's margin between preferred and rejected answer, summed, and metrics."""
        sequences, pairs, members = tokens.segments("sequence"), tokens.segments("pair"), tokens.members("pair")
        other = torch.zeros_like(tokens.weight)
        for name, share in (("reference_logprob", self.reference_share), ("old_logprob", 1.0 - self.reference_share)):
            if share > 0.0:
                other = other + share * tokens.stream(name)
        log_ratio = tokens.logprob - other
        log_ratio = sequences.sum(log_ratio) if self.reduce == "sum" else sequences.mean(log_ratio)
        advantage = sequences.mean(tokens.advantage)
        preferred = (advantage - members.spread(members.mean(advantage))).sign()
        margin = members.sum(preferred * self._implicit_reward(log_ratio))
        cost = self._cost(margin)
        loss = (pairs.sum(tokens.stream("weight_kl")) * cost).sum()
        spread = pairs.spread(margin)
        return loss, metric_sums(
            tokens, margin=self.beta * spread, accuracy=(spread > 0).to(spread), entropy=tokens.entropy
        )

    def _implicit_reward(self, away: Tensor) -> Tensor:
        if self.divergence == "reverse_kl":
            return away
        if self.divergence == "js":
            return away.new_tensor(2.0).log() - functional.softplus(-away)
        power = self.alpha if self.divergence == "alpha" else 1.0
        return -(-power * away).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() / power

    def _cost(self, margin: Tensor) -> Tensor:
        if self.kind == "square":
            return (margin - 1.0 / (2.0 * self.beta)).square()
        scaled = self.beta * margin
        if self.kind == "hinge":
            return (1.0 - scaled).clamp(min=0.0)
        return (1.0 - self.smoothing) * functional.softplus(-scaled) + self.smoothing * functional.softplus(scaled)
