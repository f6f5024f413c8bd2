"""HAEPO: make the answers of a group compete for probability, each as a whole history (arXiv:2508.18884).

A softmax over the log-probs of a group's trajectories turns long-horizon credit assignment into one choice among few.
The paper leaves open the level of its entropy and divergence; here both are of the softmax. The advantage is the
standardised reward of the group.

Equations:
    Read: the abstract and notes of others; the paper's text was not read.

    - N1, log-likelihood of a trajectory: `TrajectorySoftmax(score="sum")`.
    - N2, weights: `TrajectorySoftmax`, over a group.
    - N3, objective: `TrajectorySoftmax`, a mean over groups of any size, with advantages of `GroupRelative`, std of
      n - 1 and 1e-6 added to it.
    - N4, entropy: `TrajectorySoftmax(entropy_coefficient=0.01)`.
    - N5, KL: `TrajectorySoftmax(drift_coefficient=0.01)`, relative to the policy before the batch.
    - N6, gradient: the gradient of `TrajectorySoftmax`.

Differs:
    - Softmax: over the episodes of a batch according to the notes; over the episodes of a group here, since log-probs
      of answers to different tasks are not comparable.
    - Coefficients: not stated in the abstract; 0.01 in the notes and here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option
from agentrl_core.loss import ADVANTAGES, GroupLoss, Tokens, metric_sums, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TrajectorySoftmax(GroupLoss):
    """Make the answers of a group compete for probability.

    With P the softmax over the group of coefficient * l, the loss maximises

        J = sum of P A + entropy_coefficient * H(P) - drift_coefficient * KL(P_old || P)

    l is the log-prob of the whole answer (`sum`; answers differ by a few hundred nats, so P is nearly one-hot), its
    mean over tokens (`mean`), or the log-ratio to the old policy (`log_ratio`). P_old is the same softmax for the old
    policy; for `log_ratio` it is uniform. An answer that is alone in its group has no gradient.

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.
        score: definition of l: `sum`, `mean` or `log_ratio`.
        coefficient: factor of l, above 0.
        entropy_coefficient: weight of the entropy of P, at least 0.
        drift_coefficient: weight of the divergence from P_old, at least 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.haepo import TrajectorySoftmax
        >>> gain, pull = torch.tensor([0.5, 0.0]), torch.tensor([0.0, -0.5])  # A is 1 and -1, each of weight 1/2
        >>> streams = {"weight_kl": torch.full((2,), 0.5), "advantage_positive": gain, "advantage_negative": pull}
        >>> streams |= {"sequence": torch.tensor([0, 1]), "group": torch.tensor([0, 0])}
        >>> streams["old_logprob"] = torch.tensor([-2.0, -2.0])
        >>> tokens = Tokens(torch.tensor([-2.0, -2.0]), None, streams)  # P = 1/2: only its entropy is left
        >>> TrajectorySoftmax().evaluate(tokens)[0].item()
        -0.0069
    """

    reads: ClassVar[tuple[str | Column, ...]] = (*ADVANTAGES, "weight_kl", "sequence", "group", "old_logprob")

    score: Literal["sum", "mean", "log_ratio"] = "sum"
    coefficient: float = option(1.0, above=0)
    entropy_coefficient: float = option(0.01, at_least=0)
    drift_coefficient: float = option(0.01, at_least=0)

    @property
    def equal_groups(self) -> bool:
        """Return True: groups have equal weight, since a group here is a batch in the paper."""
        return True

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss (minus the weighted sum of the groups' objectives) and metrics."""
        sequences, members = tokens.segments("sequence"), tokens.members("group")
        old = tokens.stream("old_logprob")
        new = tokens.logprob - old if self.score == "log_ratio" else tokens.logprob
        reduce = sequences.mean if self.score == "mean" else sequences.sum
        policy = members.log_softmax(self.coefficient * reduce(new))
        old_policy = members.log_softmax(
            self.coefficient * reduce(torch.zeros_like(old) if self.score == "log_ratio" else old)
        )
        gain = policy.exp() * (sequences.mean(tokens.advantage) - self.entropy_coefficient * policy)
        objective = members.sum(gain - self.drift_coefficient * old_policy.exp() * (old_policy - policy))
        return -self.group_sum(tokens, objective), metric_sums(tokens, entropy=tokens.entropy)


HAEPO = Recipe(name="haepo", source="arXiv:2508.18884", advantage=GroupRelative(), loss=TrajectorySoftmax())
