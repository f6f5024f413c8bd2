"""iStar (OPRL): step rewards of an implicit reward model, which learns from preferences between trajectories.

Nobody labels steps: the reward model is trained so that its mean step reward is higher for the better of two
trajectories of a task, and the log-ratio to its reference, a snapshot of the policy, is the reward of a step. Its
groups' mean over pairs weighs as the group's tokens do; the paper states only a mean over all pairs. Only the
first step of a draw votes in the public code's statistics: `advantage.compat("istar/step")`. Source: arXiv:2509.19199.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, column_name, option, token
from agentrl_core.loss import GroupLoss, Policy, Tokens, Train, metric_sums, torch
from agentrl_core.reward import ImplicitProcess, OutcomeScore

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TrajectoryPairs(GroupLoss):
    """Trains an implicit reward model to prefer, of any two trajectories of a task, the better one.

    With S the mean over the steps of a trajectory of beta * sum of log p - log p_other over the step's tokens, a group
    costs the mean of - log sigmoid(S_i - S_j) over its pairs with y_i > y_j. A group without such a pair costs nothing
    but still counts in the denominator.

    Args:
        aggregate: as of every loss.
        constant: as of every loss.
        beta: above 0.
        label: the column of y, one value a draw.
        other: the token column of log p_other.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.istar import TrajectoryPairs
        >>> streams = {"weight_kl": torch.full((2,), 0.5), "score": torch.tensor([1.0, 0.0])}
        >>> streams |= {"sequence": torch.tensor([0, 1]), "group": torch.tensor([0, 0]), "step": torch.tensor([0, 1])}
        >>> streams["reward_reference_logprob"] = torch.tensor([-2.0, -2.0])
        >>> tokens = Tokens(torch.tensor([-1.0, -3.0]), None, streams)  # S is 1 and -1
        >>> TrajectoryPairs(beta=1.0).evaluate(tokens)[0].item()
        0.127
    """

    beta: float = option(0.05, above=0)
    label: str = column_name("score", level="token")
    other: str = column_name("reward_reference_logprob", level="token", model="reward_reference")

    def own_reads(self) -> Iterable[str | Column]:
        """Weights, ids, labels, and the other model's log-probs."""
        return ("weight_kl", "step", "sequence", "group", token(self.label), token(self.other))

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """How badly the model orders the pairs of trajectories of each task, and metrics."""
        steps, sequences, members = tokens.segments("step"), tokens.segments("sequence"), tokens.members("group")
        of_step = torch.zeros_like(steps.ids).scatter(0, steps.ids, sequences.ids)
        count = torch.zeros_like(steps.count).index_add(0, of_step, steps.exists.double()).clamp(min=1.0)
        score = self.beta * sequences.sum(tokens.log_ratio_to(self.other)) / count.to(tokens.logprob.dtype)
        label = sequences.mean(tokens.stream(self.label))
        drawn = (
            int(sequences.ids.max()) + 1 if len(sequences.ids) else 0
        )  # waits for the device: pairs of draws, not of rows
        score, label, group = score[:drawn], label[:drawn], members.ids[:drawn]
        exist = members.counted[:drawn]
        better = (label[:, None] > label) & (group[:, None] == group) & exist[:, None] & exist
        cost = torch.where(better, torch.nn.functional.softplus(score - score[:, None]), 0.0)
        weight = tokens.segments("group").sum(tokens.stream("weight_kl")).to(cost.dtype)
        pairs = torch.zeros_like(weight).index_add(0, group, better.sum(1).to(cost.dtype))
        costs = torch.zeros_like(weight).index_add(0, group, cost.sum(1))
        loss = (weight * costs / pairs.clamp(min=1.0)).sum()
        return loss, metric_sums(tokens, entropy=tokens.entropy)


ISTAR = Recipe(
    name="istar",
    source="arXiv:2509.19199",
    reward=(OutcomeScore(), ImplicitProcess(level="step")),
    advantage=(
        GroupRelative(column="process_reward", level="step", scale="none"),
        GroupRelative(scale="none", singleton="raw", add=True),
    ),
    loss=(Train(TrajectoryPairs(), model="reward_model"), Policy()),
)
