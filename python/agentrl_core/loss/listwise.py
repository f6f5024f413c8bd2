"""Groups: losses on all answers to the same question together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentrl_core.loss.base import Unit, WeightedLoss, sums
from agentrl_core.loss.tokens import Segments, Tokens
from agentrl_core.model.lazy_torch import functional, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GroupLoss(WeightedLoss):
    """Base of the losses on groups: what they read. A group counts as its rows' weights add up."""

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Advantages, weights, ids of sequences and groups."""
        return ("advantage_positive", "advantage_negative", "weight_kl", "sequence", "group")

    @property
    def own_unit(self) -> Unit:
        """The group."""
        return "group"

    @property
    def own_foldable(self) -> bool:
        """No."""
        return False

    @property
    def own_separable(self) -> bool:
        """No."""
        return False

    def _group_sum(self, tokens: Tokens, cost: Tensor) -> Tensor:
        """Sum over groups of their weight times their cost."""
        return (tokens.segments("group").sum(tokens.stream("weight_kl")) * cost).sum()


@dataclass(frozen=True)
class ListMatch(GroupLoss):
    """The policy's distribution over the answers of a group is fitted to the softmax of their rewards.

    With x = sum over an answer of log p - log q, P = softmax of beta x and Q = softmax of A / temperature over the
    group (advantages and rewards give the same Q):

        `reverse`: sum of P (log P - log Q)   EXO, arXiv:2402.00856
        `forward`: - sum of Q log P           GDRO's top-1 loss; two answers and a small temperature give DPO

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        direction: `reverse` or `forward`.
        beta: above 0.
        temperature: above 0.
        reference: q: the `reference` model or the `old` policy.
        reduce: x is a `sum`, or with `mean` the mean over the tokens of an answer.

    Example:
        >>> from agentrl_core import loss
        >>> loss.ListMatch("sequence_mean", direction="reverse").unit
        'group'
    """

    direction: Literal["reverse", "forward"] = "reverse"
    beta: float = 0.5
    temperature: float = 0.5
    reference: Literal["reference", "old"] = "reference"
    reduce: Literal["sum", "mean"] = "sum"

    def check_options(self) -> None:
        """Ranges as documented."""
        super().check_options()
        for name in ("beta", "temperature"):
            self.require(getattr(self, name) > 0.0, name, "give a number above 0")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """What every group reads, and the log-probs of q."""
        return (*super().own_streams, f"{self.reference}_logprob")

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The formula of the class."""
        sequences, members = tokens.segments("sequence"), tokens.members("group")
        away = tokens.logprob - tokens.stream(f"{self.reference}_logprob")
        away = sequences.sum(away) if self.reduce == "sum" else sequences.mean(away)
        policy = members.log_softmax(self.beta * away)
        target = members.log_softmax(sequences.mean(tokens.advantage) / self.temperature)
        if self.direction == "reverse":
            cost = members.sum(policy.exp() * (policy - target))
        else:
            cost = -members.sum(target.exp() * policy)
        return self._group_sum(tokens, cost), sums(tokens, entropy=tokens.entropy)


@dataclass(frozen=True)
class TrajectorySoftmax(GroupLoss):
    """HAEPO: the answers of a group compete for probability.

    Maximised is, with P the softmax over the group of scale * l,

        J = sum of P A + entropy * H(P) - drift * KL(P_old || P)

    l is the log-prob of the whole answer (`sum`; a few hundred nats apart, so P is nearly one-hot), its mean over
    tokens (`mean`), or the log-ratio to the old policy (`log_ratio`). P_old is the same of the old policy; for
    `log_ratio` it is uniform. A single answer has no gradient. The paper leaves the level of the entropy and the
    divergence open; here both are of P.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        score: `sum`, `mean` or `log_ratio`.
        scale: above 0.
        entropy: at least 0.
        drift: at least 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import TrajectorySoftmax, Tokens
        >>> gain, pull = torch.tensor([0.5, 0.0]), torch.tensor([0.0, -0.5])  # A is 1 and -1, each of weight 1/2
        >>> streams = {"weight_kl": torch.full((2,), 0.5), "advantage_positive": gain, "advantage_negative": pull}
        >>> streams |= {"sequence": torch.tensor([0, 1]), "group": torch.tensor([0, 0])}
        >>> streams["old_logprob"] = torch.tensor([-2.0, -2.0])
        >>> tokens = Tokens(torch.tensor([-2.0, -2.0]), None, streams)  # P = 1/2: only its entropy is left
        >>> TrajectorySoftmax().evaluate(tokens)[0].item()
        -0.0069
    """

    score: Literal["sum", "mean", "log_ratio"] = "sum"
    scale: float = 1.0
    entropy: float = 0.01
    drift: float = 0.01

    def check_options(self) -> None:
        """Ranges as documented."""
        super().check_options()
        self.require(self.scale > 0.0, "scale", "give a number above 0")
        for name in ("entropy", "drift"):
            self.require(getattr(self, name) >= 0.0, name, "give a number of at least 0")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """What every group reads, and the old policy's log-probs."""
        return (*super().own_streams, "old_logprob")

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The formula of the class."""
        sequences, members = tokens.segments("sequence"), tokens.members("group")
        old = tokens.stream("old_logprob")
        new = tokens.logprob - old if self.score == "log_ratio" else tokens.logprob
        reduce = sequences.mean if self.score == "mean" else sequences.sum
        policy = members.log_softmax(self.scale * reduce(new))
        before = members.log_softmax(self.scale * reduce(torch.zeros_like(old) if self.score == "log_ratio" else old))
        gain = policy.exp() * (sequences.mean(tokens.advantage) - self.entropy * policy)
        objective = members.sum(gain - self.drift * before.exp() * (before - policy))
        return -self._group_sum(tokens, objective), sums(tokens, entropy=tokens.entropy)


@dataclass(frozen=True)
class OutcomeClassifier(GroupLoss):
    """PACS: the log-ratio of an answer, against those of its group, predicts whether it is right (arXiv:2509.02522).

    With q = beta * sum of log p - log p_old, the score of an answer is psi = q - mean of the others' q
    (`leave_one_out`; 0 stands for the mean where there are no others), (q - mean) / (std + 1e-6) with the unbiased
    std (`standard`) or q (`none`). An answer costs c * binary cross-entropy of sigmoid(psi) and [A > 0], times its own
    rows' weights. Gradients flow through the baselines too.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        beta: above 0.
        baseline: see above.
        balanced: c = size / (2 * size of the answer's class) where a group has both classes; else 1.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import OutcomeClassifier, Tokens
        >>> gain, pull = torch.tensor([0.5, 0.0]), torch.tensor([0.0, -0.5])  # A is 1 and -1, each of weight 1/2
        >>> streams = {"weight_kl": torch.full((2,), 0.5), "advantage_positive": gain, "advantage_negative": pull}
        >>> streams |= {"sequence": torch.tensor([0, 1]), "group": torch.tensor([0, 0])}
        >>> streams["old_logprob"] = torch.tensor([-2.0, -2.0])
        >>> OutcomeClassifier().evaluate(Tokens(torch.tensor([-1.0, -3.0]), None, streams))[0].item()  # psi is 2 and -2
        0.127
    """

    beta: float = 1.0
    baseline: Literal["leave_one_out", "standard", "none"] = "leave_one_out"
    balanced: bool = True

    def check_options(self) -> None:
        """Ranges as documented."""
        super().check_options()
        self.require(self.beta > 0.0, "beta", "give a number above 0")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """What every group reads, and the old policy's log-probs."""
        return (*super().own_streams, "old_logprob")

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The formula of the class."""
        sequences, members = tokens.segments("sequence"), tokens.members("group")
        score = self._score(members, self.beta * sequences.sum(tokens.log_ratio))
        right = (sequences.mean(tokens.advantage) > 0).to(score)
        cost = functional.binary_cross_entropy_with_logits(score, right, reduction="none")
        if self.balanced:
            size = members.spread(members.count).to(score)
            share = members.spread(members.mean(right))
            same = torch.where(right > 0, share, 1.0 - share) * size
            both = (share > 0) & (share < 1)
            cost = cost * torch.where(both, size / (2.0 * same.clamp(min=1.0)), 1.0)
        loss = (sequences.sum(tokens.stream("weight_kl")) * cost).sum()
        accuracy = ((score > 0) == (right > 0)).to(score)
        return loss, sums(tokens, accuracy=sequences.spread(accuracy), entropy=tokens.entropy)

    def _score(self, members: Segments, value: Tensor) -> Tensor:
        if self.baseline == "none":
            return value
        size = members.spread(members.count).to(value)
        if self.baseline == "leave_one_out":
            return value - (members.spread(members.sum(value)) - value) / (size - 1.0).clamp(min=1.0)
        centred = value - members.spread(members.mean(value))
        variance = members.spread(members.sum(centred.square())) / (size - 1.0).clamp(min=1.0)
        # Where all are equal the root has no derivative, and the centred values are 0 anyway.
        spread = torch.where(variance > 0, variance, 1.0).sqrt() * (variance > 0)
        return centred / (spread + 1e-6)


@dataclass(frozen=True)
class LengthDecoupled(GroupLoss):
    """DRPO: length counts among right answers only, wrong ones are pushed down as a soft maximum (arXiv:2510.04474).

    With s the mean token log-prob of an answer, P the right answers (A > 0) and N the others of a group:

        J = sum over P of v s - temperature * log(mean over N of exp(s / temperature))
        v = exp((1 - length / limit) / sharpness), normalised over P

    A group without P or without N costs nothing but still counts in the denominator. To this comes a hinge on the
    drift: c * KL with KL the weighted mean of forward k3 to the old policy over the rows given, and
    c = sg(max(kl_rate * (KL - kl_target), 0)). A large `sharpness` is DisCO.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        temperature: above 0.
        sharpness: above 0.
        limit: the longest answer, in trained tokens, at least 1.
        kl_rate: at least 0.
        kl_target: at least 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import LengthDecoupled, Tokens
        >>> gain, pull = torch.tensor([0.5, 0.0]), torch.tensor([0.0, -0.5])  # A is 1 and -1, each of weight 1/2
        >>> streams = {"weight_kl": torch.full((2,), 0.5), "advantage_positive": gain, "advantage_negative": pull}
        >>> streams |= {"sequence": torch.tensor([0, 1]), "group": torch.tensor([0, 0])}
        >>> streams["old_logprob"] = torch.tensor([-1.0, -2.0])
        >>> LengthDecoupled().evaluate(Tokens(torch.tensor([-1.0, -2.0]), None, streams))[0].item()  # -(-1 + 2)
        -1.0
    """

    temperature: float = 10.0
    sharpness: float = 0.1
    limit: int = 4096
    kl_rate: float = 1e3
    kl_target: float = 1e-4

    def check_options(self) -> None:
        """Ranges as documented."""
        super().check_options()
        for name in ("temperature", "sharpness"):
            self.require(getattr(self, name) > 0.0, name, "give a number above 0")
        self.require(self.limit >= 1, "limit", "give a whole number of at least 1")
        for name in ("kl_rate", "kl_target"):
            self.require(getattr(self, name) >= 0.0, name, "give a number of at least 0")

    @property
    def own_streams(self) -> tuple[str, ...]:
        """What every group reads, and the old policy's log-probs."""
        return (*super().own_streams, "old_logprob")

    @property
    def own_unit(self) -> Unit:
        """The update, whose drift makes the hinge; without a hinge the group."""
        return "update" if self.kl_rate > 0.0 else super().own_unit

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The formula of the class."""
        sequences, members = tokens.segments("sequence"), tokens.members("group")
        score = sequences.mean(tokens.logprob)
        right = sequences.mean(tokens.advantage) > 0
        good = Segments(members.ids, members.counted & right, "group")
        bad = Segments(members.ids, members.counted & ~right, "group")
        length = (sequences.count / self.limit).to(score)
        share = good.log_softmax((1.0 - length) / self.sharpness).exp()
        wrong = bad.log_sum_exp(score / self.temperature) - bad.count.clamp(min=1).log().to(score)
        objective = good.sum(share * score) - self.temperature * wrong
        objective = torch.where(good.exists & bad.exists, objective, 0.0)

        weight = tokens.stream("weight_kl")
        drift = tokens.log_ratio.expm1() - tokens.log_ratio
        drift = (weight * drift).sum() / torch.where(tokens.trained.any(), weight.sum(), 1.0)
        hinge = (self.kl_rate * (drift.detach() - self.kl_target)).clamp(min=0.0)
        return -self._group_sum(tokens, objective) + hinge * drift, sums(tokens, entropy=tokens.entropy)


def differential_information(log_ratio: Tensor) -> Tensor:
    """Entropy in nats of the softmax of sequence log-ratios log p - log q over a set of candidates, a scalar.

    Low: an update on the set reinforces one answer; high: it smooths over them ("Differential information
    distribution"). One candidate gives 0.

    Args:
        log_ratio: `[k]`.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import differential_information
        >>> differential_information(torch.zeros(2)).item()
        0.693
    """
    logprob = log_ratio.log_softmax(0)
    return -(logprob.exp() * logprob).sum()
