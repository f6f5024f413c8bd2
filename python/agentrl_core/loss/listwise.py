"""Losses on all answers to the same question together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentrl_core._util.lazy_torch import functional, torch
from agentrl_core.component import Column, column_name, option, token
from agentrl_core.loss.base import ADVANTAGES, REFERENCE, Unit, WeightedLoss, metric_sums
from agentrl_core.loss.inputs import Segments, Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GroupLoss(WeightedLoss):
    """Base class of losses on groups. The weight of a group is the sum of the weights of its rows."""

    reads: ClassVar[tuple[str | Column, ...]] = (*ADVANTAGES, "weight_kl", "sequence", "group")
    over: ClassVar[Unit] = "group"

    @staticmethod
    def group_sum(tokens: Tokens, cost: Tensor) -> Tensor:
        """Return the sum over groups of weight times cost."""
        return (tokens.segments("group").sum(tokens.stream("weight_kl")) * cost).sum()


@dataclass(frozen=True)
class ListMatch(GroupLoss):
    """Fits the policy's distribution over the answers of a group to a softmax of their rewards.

    With x = sum over an answer of log p - log q, P = softmax of beta x and Q = softmax of A / temperature over the
    group. A is the reward, or the reward less a baseline of the group (`GroupRelative(scale="none")`), which gives the
    same Q; an advantage that was divided by a spread gives another. The loss is the mean over groups, of any size, of

        `reverse`: sum of P (log P - log Q)   EXO, arXiv:2402.00856
        `forward`: - sum of Q log P           GDRO's top-1 loss; two answers and a small temperature give DPO
        `ranked`: the sum of `forward` over all answers, over all but the best, over all but the two best, and so on,
                  each with P and Q over the remaining answers. GDRO's full loss (Plackett-Luce), arXiv:2601.02036.
                  If A is equal, the first answer ranks higher

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.
        direction: `reverse`, `forward` or `ranked`.
        beta: factor of x in P, above 0.
        temperature: divisor of A in Q, above 0.
        reference: the policy q: the `reference` model or the `old` policy.
        reduce: x is the `sum` or the `mean` over the tokens of an answer.

    Example:
        >>> from agentrl_core import loss
        >>> loss.ListMatch("sequence_mean", direction="reverse").unit
        'group'
    """

    direction: Literal["reverse", "forward", "ranked"] = "reverse"
    beta: float = option(0.5, above=0)
    temperature: float = option(0.5, above=0)
    reference: Literal["reference", "old"] = "reference"
    reduce: Literal["sum", "mean"] = "sum"

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns to read: those of every group loss, and the log-probs of `reference`."""
        return (*self.reads, REFERENCE if self.reference == "reference" else "old_logprob")

    @property
    def equal_groups(self) -> bool:
        """True: the loss is a mean over groups."""
        return True

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the divergence of the policy's distribution over each group's answers from the target, and metrics."""
        sequences, members = tokens.segments("sequence"), tokens.members("group")
        log_ratio = tokens.logprob - tokens.stream(f"{self.reference}_logprob")
        log_ratio = sequences.sum(log_ratio) if self.reduce == "sum" else sequences.mean(log_ratio)
        if self.direction == "ranked":
            reward = sequences.mean(tokens.advantage) / self.temperature
            cost = members.sum(members.rest_cross_entropy(self.beta * log_ratio, reward))
            return self.group_sum(tokens, cost), metric_sums(tokens, entropy=tokens.entropy)
        policy = members.log_softmax(self.beta * log_ratio)
        target = members.log_softmax(sequences.mean(tokens.advantage) / self.temperature)
        if self.direction == "reverse":
            cost = members.sum(policy.exp() * (policy - target))
        else:
            cost = -members.sum(target.exp() * policy)
        return self.group_sum(tokens, cost), metric_sums(tokens, entropy=tokens.entropy)


@dataclass(frozen=True)
class OutcomeClassifier(GroupLoss):
    """Trains a model by log-ratios as a classifier of right and wrong answers.

    With q = beta * sum of log p - log p_other, the score of an answer is psi = q - mean of the others' q
    (`leave_one_out`; 0 stands for the mean where there are no others), (q - mean) / (std + 1e-6) with the unbiased
    std (`standard`) or q (`none`). An answer costs c * binary cross-entropy of sigmoid(psi) and [y > 0], times its own
    rows' weights. Gradients flow through the baselines too.

    PACS (arXiv:2509.02522) compares the policy with the old one within a group. The implicit reward model of PRIME
    (arXiv:2502.01456) is `OutcomeClassifier(beta=0.05, baseline="none", balanced=False, label="score",
    other="reward_reference_logprob")` of the model `reward_model`.

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.
        beta: factor of the log-ratios, above 0.
        baseline: see above.
        balanced: c = size / (2 * size of the answer's class) if a group has both classes, otherwise 1.
        label: column of y, of tokens or, such as `score`, of draws; empty: y is the advantage. If all answers of a
            group are right, their advantages are 0 and y counts as wrong: with `baseline="none"` name a column.
        other: the token column of log p_other; empty: log-probs of the old policy.

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

    beta: float = option(1.0, above=0)
    baseline: Literal["leave_one_out", "standard", "none"] = "leave_one_out"
    balanced: bool = True
    label: str = column_name("", level="token", optional=True)
    other: str = column_name("", level="token", optional=True)

    def own_reads(self) -> Iterable[str | Column]:
        """Yield the columns to read: weights, sequence and group ids, labels, and the other policy's log-probs."""
        yield from ("weight_kl", "sequence", "group")
        yield from (token(self.label),) if self.label else ADVANTAGES
        yield token(self.other) if self.other else "old_logprob"

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross-entropy of classifying each group's answers by log-ratios, and metrics."""
        sequences, members = tokens.segments("sequence"), tokens.members("group")
        log_ratio = tokens.log_ratio_to(self.other or "old_logprob")
        score = self._score(members, self.beta * sequences.sum(log_ratio))
        labels = tokens.stream(self.label) if self.label else tokens.advantage
        right = (sequences.mean(labels) > 0).to(score)
        cost = functional.binary_cross_entropy_with_logits(score, right, reduction="none")
        if self.balanced:
            size = members.spread(members.count).to(score)
            share = members.spread(members.mean(right))
            same = torch.where(right > 0, share, 1.0 - share) * size
            has_both = (share > 0) & (share < 1)
            cost = cost * torch.where(has_both, size / (2.0 * same.clamp(min=1.0)), 1.0)
        loss = (sequences.sum(tokens.stream("weight_kl")) * cost).sum()
        accuracy = ((score > 0) == (right > 0)).to(score)
        return loss, metric_sums(tokens, accuracy=sequences.spread(accuracy), entropy=tokens.entropy)

    def _score(self, members: Segments, value: Tensor) -> Tensor:
        if self.baseline == "none":
            return value
        size = members.spread(members.count).to(value)
        if self.baseline == "leave_one_out":
            return value - (members.spread(members.sum(value)) - value) / (size - 1.0).clamp(min=1.0)
        centred = value - members.spread(members.mean(value))
        variance = members.spread(members.sum(centred.square())) / (size - 1.0).clamp(min=1.0)
        # If all values are equal, the root has no derivative; the centred values are 0 anyway.
        spread = torch.where(variance > 0, variance, 1.0).sqrt() * (variance > 0)
        return centred / (spread + 1e-6)
