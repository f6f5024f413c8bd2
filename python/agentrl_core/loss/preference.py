"""Pairs: losses on two answers to the same question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.loss.base import Unit, WeightedLoss, sums
from agentrl_core.loss.tokens import LOG_RATIO_LIMIT, Tokens
from agentrl_core.model.lazy_torch import functional, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PairLoss(WeightedLoss):
    """Base of the losses on pairs: what they read, and that a pair counts as its rows' weights add up.

    With `sequence_mean` over both members that is the mean over pairs.
    """

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Advantages, weights, ids of sequences and pairs."""
        return ("advantage_positive", "advantage_negative", "weight_kl", "sequence", "pair")

    @property
    def own_unit(self) -> Unit:
        """The pair."""
        return "pair"

    @property
    def own_foldable(self) -> bool:
        """No."""
        return False

    @property
    def own_separable(self) -> bool:
        """No."""
        return False


@dataclass(frozen=True)
class Preference(PairLoss):
    """Of two answers the one with the positive advantage is preferred to the one with the negative advantage.

    With x = sum over an answer of log p - log q and m = g(x_chosen) - g(x_rejected), a pair costs

        `logistic`: - (1 - smoothing) log sigmoid(beta m) - smoothing log sigmoid(-beta m)   DPO, arXiv:2305.18290
        `square`:   (m - 1 / (2 beta))^2                                                     IPO, arXiv:2310.12036
        `hinge`:    max(0, 1 - beta m)                                                       SLiC, arXiv:2305.10425

    g is the divergence's f'(p / q) up to a constant (f-DPO, arXiv:2309.16240): `reverse_kl`: x (DPO); `forward_kl`:
    -exp(-x); `js`: log 2 - log(1 + exp(-x)); `alpha`: -exp(-alpha x) / alpha.

    log q = reference_share * log p_reference + (1 - reference_share) * log p_old. INPO (arXiv:2407.00617) is `square`
    with beta = eta and reference_share = tau / eta. TR-DPO is DPO with a reference that moves.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        kind: see above.
        beta: above 0.
        divergence: see above.
        alpha: of `alpha`, between 0 and 1.
        reference_share: from 0 to 1.
        reduce: x is a `sum`, or with `mean` the mean over the tokens of an answer.
        smoothing: of `logistic`, at least 0, below 1/2: how often labels are wrong.

    Metrics: `margin` (beta m) and `accuracy` (m > 0), of every row its pair's.

    Example:
        >>> from agentrl_core import loss
        >>> loss.Preference(beta=0.1).unit
        'pair'
    """

    kind: Literal["logistic", "square", "hinge"] = "logistic"
    beta: float = 0.1
    divergence: Literal["reverse_kl", "forward_kl", "js", "alpha"] = "reverse_kl"
    alpha: float = 0.5
    reference_share: float = 1.0
    reduce: Literal["sum", "mean"] = "sum"
    smoothing: float = 0.0

    def check_options(self) -> None:
        """Ranges as documented."""
        super().check_options()
        self.require(self.beta > 0.0, "beta", "give a number above 0")
        self.require(0.0 < self.alpha < 1.0, "alpha", "give a number between 0 and 1")
        self.require(0.0 <= self.reference_share <= 1.0, "reference_share", "give a number from 0 to 1")
        self.require(0.0 <= self.smoothing < 0.5, "smoothing", "give a number from 0 and below 0.5")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """What every pair reads, and the log-probs that q mixes."""
        reference = ("reference_logprob",) if self.reference_share > 0.0 else ()
        old = ("old_logprob",) if self.reference_share < 1.0 else ()
        return (*super().own_streams, *reference, *old)

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The formula of the class."""
        sequences, pairs, members = tokens.segments("sequence"), tokens.segments("pair"), tokens.members("pair")
        other = torch.zeros_like(tokens.weight)
        for name, share in (("reference_logprob", self.reference_share), ("old_logprob", 1.0 - self.reference_share)):
            if share > 0.0:
                other = other + share * tokens.stream(name)
        away = tokens.logprob - other
        away = sequences.sum(away) if self.reduce == "sum" else sequences.mean(away)
        margin = members.sum(sequences.mean(tokens.advantage).sign() * self._implicit_reward(away))
        cost = self._cost(margin)
        loss = (pairs.sum(tokens.stream("weight_kl")) * cost).sum()
        spread = pairs.spread(margin)
        return loss, sums(tokens, margin=self.beta * spread, accuracy=(spread > 0).to(spread), entropy=tokens.entropy)

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


@dataclass(frozen=True)
class PairwiseProximal(PairLoss):
    """P3O: policy gradient on differences of rewards (arXiv:2310.00212), invariant to a shift per question.

    With R the advantages of the two answers (their rewards, a divergence folded in), r their ratios to the old policy
    (joint, within exp(+-20)) and D = log p(y1) - log p(y2), a pair costs - J:

        `separate`: J = 1/2 sum over i of min(v r_i, v clip(r_i, 1 +- epsilon)),  v = sg((R_i - R_j) r_j)
        `joint`:    J = 1/2 min(v D, v clip(D, D_old +- epsilon)),                v = sg((R_1 - R_2) r_1 r_2)

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        kind: `separate` or `joint`.
        epsilon: between 0 and 1.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import PairwiseProximal, Tokens
        >>> gain, pull = torch.tensor([0.5, 0.0]), torch.tensor([0.0, -0.5])  # A is 1 and -1, each of weight 1/2
        >>> streams = {"weight_kl": torch.full((2,), 0.5), "advantage_positive": gain, "advantage_negative": pull}
        >>> streams |= {"sequence": torch.tensor([0, 1]), "pair": torch.tensor([0, 0])}
        >>> streams["old_logprob"] = torch.tensor([-2.0, -2.0])
        >>> tokens = Tokens(torch.tensor([1.5, 1.0]).log() - 2.0, None, streams)  # ratios 1.5 and 1
        >>> PairwiseProximal().evaluate(tokens)[0].item()  # -(min(3, 2.4) - 3) / 2
        0.3
    """

    kind: Literal["separate", "joint"] = "separate"
    epsilon: float = 0.2

    def check_options(self) -> None:
        """Ranges as documented."""
        super().check_options()
        self.require(0.0 < self.epsilon < 1.0, "epsilon", "give a number between 0 and 1")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """What every pair reads, and the old policy's log-probs."""
        return (*super().own_streams, "old_logprob")

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The formula of the class."""
        sequences, pairs, members = tokens.segments("sequence"), tokens.segments("pair"), tokens.members("pair")

        def difference(values: Tensor) -> Tensor:
            """Of each member, its value minus the other's."""
            return 2.0 * values - members.spread(members.sum(values))

        away = sequences.sum(tokens.logprob - tokens.stream("old_logprob")).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratio, gain = away.exp(), difference(sequences.mean(tokens.advantage))
        other = (away - difference(away)).detach().exp()
        if self.kind == "separate":
            value = gain * other
            bounded = ratio.clamp(1.0 - self.epsilon, 1.0 + self.epsilon)
            objective = torch.minimum(value * ratio, value * bounded) / 2.0
        else:
            value = gain * ratio.detach() * other
            apart = difference(sequences.sum(tokens.logprob))
            before = difference(sequences.sum(tokens.stream("old_logprob")))
            # The same for both members, so half of it each.
            bounded = apart.clamp(min=before - self.epsilon, max=before + self.epsilon)
            objective = torch.minimum(value * apart, value * bounded) / 4.0
        objective = torch.where(sequences.exists, objective, 0.0)
        loss = -(pairs.sum(tokens.stream("weight_kl")) * members.sum(objective)).sum()
        return loss, sums(tokens, ratio=sequences.spread(ratio), entropy=tokens.entropy)
