"""DRPO: compare lengths among right answers only, and push wrong answers down by a soft maximum (arXiv:2510.04474).

With a length penalty, a group-relative advantage can rank a long right answer below a wrong one. Here right answers are
compared only with right ones, with more weight on shorter ones, and wrong answers only with wrong ones. The loss reads
only the sign of the advantage: an answer is right if its advantage is above 0.

Equations:
    Read: the code, and a public summary of the paper.

    - C1, score: the mean log-prob of an answer's tokens.
    - C2, weight of a right response: `LengthDecoupled(sharpness=0.1, length_at_most=8192)`.
    - C3, objective of a question: `LengthDecoupled(temperature=10.0)`; it also has the value of the objective, of which
      the code has only the gradient.
    - C4, mean over questions: every group counts the same, also one without a right or without a wrong answer.
    - C5, trust region: `LengthDecoupled(kl_coefficient=1e3, kl_target=1e-4)`.
    - N1, target distribution of right responses: it is the weight of C2.

Differs:
    - KL: a penalty on the divergence from the old policy, as in the code; none on the divergence from a reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option
from agentrl_core.loss import ADVANTAGES, GroupLoss, Tokens, Unit, metric_sums, torch
from agentrl_core.reward import OutcomeScore

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LengthDecoupled(GroupLoss):
    """Raise right answers, shorter ones more, and push wrong answers down by a soft maximum.

    In each group, let s be the mean token log-prob of an answer, P the right answers (A > 0) and N the wrong ones:

        J = sum over P of v s - temperature * log(mean over N of exp(s / temperature))
        v = exp((1 - length / length_at_most) / sharpness), normalised over P

    The loss is the mean of -J over groups; a group without P or without N adds 0 but counts in the mean. A hinge on the
    drift is added: c * KL, with KL the mean of log p_old - log p over the trained tokens and

        c = sg(max(kl_coefficient * (KL - kl_target), 0))

    With a large `sharpness`, this is DisCO.

    Args:
        aggregate: see `WeightedLoss`.
        constant: see `WeightedLoss`.
        temperature: temperature of the soft maximum over wrong answers, above 0.
        sharpness: temperature of the weights v, above 0.
        length_at_most: length of the longest answer in trained tokens, at least 1.
        kl_coefficient: slope of the hinge, at least 0.
        kl_target: KL above which the hinge is active, at least 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.drpo import LengthDecoupled
        >>> gain, pull = torch.tensor([0.5, 0.0]), torch.tensor([0.0, -0.5])  # A is 1 and -1, each of weight 1/2
        >>> streams = {"weight_kl": torch.full((2,), 0.5), "advantage_positive": gain, "advantage_negative": pull}
        >>> streams |= {"sequence": torch.tensor([0, 1]), "group": torch.tensor([0, 0])}
        >>> streams["old_logprob"] = torch.tensor([-1.0, -2.0])
        >>> LengthDecoupled().evaluate(Tokens(torch.tensor([-1.0, -2.0]), None, streams))[0].item()  # -(-1 + 2)
        -1.0
    """

    reads: ClassVar[tuple[str | Column, ...]] = (*ADVANTAGES, "weight_kl", "sequence", "group", "old_logprob")

    temperature: float = option(10.0, above=0)
    sharpness: float = option(0.1, above=0)
    length_at_most: int = option(8192, at_least=1)
    kl_coefficient: float = option(1e3, at_least=0)
    kl_target: float = option(1e-4, at_least=0)

    def own_unit(self) -> Unit:
        """Return `update`: the groups are counted, and the drift is averaged, over a whole update."""
        return "update"

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss (minus the mean objective of the groups, plus the hinge) and metrics."""
        sequences, members = tokens.segments("sequence"), tokens.members("group")
        score = sequences.mean(tokens.logprob)
        right = sequences.mean(tokens.advantage) > 0
        good = type(members)(members.ids, members.counted & right, "group")
        bad = type(members)(members.ids, members.counted & ~right, "group")
        length = (sequences.count / self.length_at_most).to(score)
        share = good.log_softmax((1.0 - length) / self.sharpness).exp()
        wrong = bad.log_sum_exp(score / self.temperature) - bad.count.clamp(min=1).log().to(score)
        objective = good.sum(share * score) - self.temperature * wrong
        objective = torch.where(good.exists & bad.exists, objective, 0.0)

        mean = tokens.stream("weight_kl").sum() * objective.sum() / tokens.segments("group").exists.sum().clamp(min=1)
        drift = -torch.where(tokens.trained, tokens.log_ratio, 0.0).sum() / tokens.trained.sum().clamp(min=1)
        hinge = (self.kl_coefficient * (drift.detach() - self.kl_target)).clamp(min=0.0)
        return hinge * drift - mean, metric_sums(tokens, entropy=tokens.entropy)


DRPO = Recipe(
    name="drpo",
    source="arXiv:2510.04474",
    reward=OutcomeScore(success=1.0, failure=0.0),
    advantage=GroupRelative(center="none", scale="none"),
    loss=LengthDecoupled(),
    minibatches=4,
)
