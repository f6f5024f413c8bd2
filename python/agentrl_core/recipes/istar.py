"""iStar (OPRL): reward steps by an implicit reward model, trained on preferences between trajectories.

No step is labelled. The reward model phi is trained so that the better one of two trajectories of a task has the higher
sum of step rewards. The reward of a step is the log-ratio of phi to its reference, a snapshot of the policy:

    r_k = 0.05 sum over the tokens of step k of (log phi - log p_snapshot)
    A_k = (R - mean(R)) / std(R) + (r_k - mean(r)) / std(r),   r over all steps of the group
    L = - mean over steps of min(rho_k A_k, clip(rho_k, 0.8, 1.2) A_k),   rho_k = p / p_old of the whole step

After the optimizer steps of an iteration, the policy is copied to the snapshot, the model `reward_reference`.

Source: arXiv:2509.19199. Needs: `arl.annotate(batch, "reward_model_logprob", reward_model)`, and
`"reward_reference_logprob"` of the model reward_reference, which starts as a copy of the policy. Because the hook
blends the weights of two models, `agentrl train --lora` refuses this recipe.

Equations:
    Read: the authors' code, and notes that copy equations 1, 2 and 4 to 6; the paper's text was not read.

    - 1, step reward: `ImplicitProcess(level="step")`.
    - 2, loss of the reward model: `TrajectoryPairs`, the mean over all pairs of an optimizer step. Its reference is the
      old policy of each iteration: `SyncModel("policy", "reward_reference")`.
    - 4, episode advantage: `GroupRelative`.
    - 5, step advantage and sum: `GroupRelative(column="process_reward", level="step")`, then the episode advantage with
      `add=True`.
    - 6, policy objective: `Policy`, `Ratio("step", "sum", "segment")`, `aggregate="step_mean"`.
    - C1, loss of the reward model in the code: `TrajectoryPairs(reduce="mean")`.
    - C2, advantages of the code: `GroupRelative(center="leave_one_out", scale="none")` at both levels. The code
      computes the statistics of the step rewards from the first step of each trajectory only:
      `advantage.compat("istar/step")`.

Differs:
    - Ratio and denominator of the code: one ratio for each token, and a mean over tokens: `Policy()`.
    - Group of one: the outcome itself, as in the code; the paper does not define it.
    - Order: the notes score steps with the updated reward model; the authors' scripts and this recipe update it after
      scoring.
    - Penalty of 0.1 for an invalid action: left to the environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option, token
from agentrl_core.loss import GroupLoss, Policy, Ratio, Tokens, Train, metric_sums, torch
from agentrl_core.reward import ImplicitProcess, OutcomeScore
from agentrl_core.schedule import SyncModel

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class WorseMembers(BatchComponent):
    """Count the members of a draw's group with a lower score: the pairs in which the draw is the better one.

    Draws without a score are not compared, and get 0.

    Args:
        column: draw column to compare.
        group_by: comma-joined key columns of the groups.

    Example:
        >>> from agentrl_core.recipes.istar import WorseMembers
        >>> WorseMembers().makes
        (draw('worse_members'),)
    """

    phase: ClassVar[str] = "reward"
    makes: ClassVar[tuple[Column, ...]] = (draw("worse_members"),)

    column: str = column_name("score", level="draw")
    group_by: str = column_name("group_id", level="draw")

    def own_needs(self) -> Iterable[Column]:
        """Yield the compared column."""
        yield draw(self.column)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `worse_members` on draws."""
        rows = Rows(batch, "draw")
        known = np.flatnonzero(rows.valid & np.isfinite(rows.values(self.column)))
        scores, groups = rows.values(self.column)[known], rows.keys(self.group_by)[known]
        order = np.lexsort((scores, groups))
        scores, groups = scores[order], groups[order]
        starts = np.diff(groups, prepend=groups[:1] + 1) != 0
        places = np.arange(len(order))
        first = np.maximum.accumulate(np.where(starts, places, 0))
        higher = starts | (np.diff(scores, prepend=scores[:1]) != 0)
        worse = np.zeros(len(rows))
        worse[known[order]] = np.maximum.accumulate(np.where(higher, places, 0)) - first
        return rows.write(worse_members=worse)


@dataclass(frozen=True)
class TrajectoryPairs(GroupLoss):
    """Train an implicit reward model to prefer the better one of any two trajectories of a task.

    S is the sum over the steps of a trajectory of beta * sum of log p - log p_other over the step's tokens. A pair with
    y_i > y_j costs - log sigmoid(S_i - S_j). The loss is the mean over the pairs of all groups of an optimizer step. A
    group without such a pair does not count.

    Args:
        aggregate: see `WeightedLoss`.
        constant: see `WeightedLoss`.
        beta: factor of the log-ratios, above 0.
        label: column of y, one value for each draw.
        other: token column of log p_other.
        pairs: column with the number of pairs in which a draw is the better one, as `WorseMembers` makes it.
        reduce: S is the `sum` over the steps of a trajectory, or their `mean`, as in the public code.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.istar import TrajectoryPairs
        >>> streams = {"weight_kl": torch.full((2,), 0.5), "score": torch.tensor([1.0, 0.0])}
        >>> streams |= {"sequence": torch.tensor([0, 1]), "group": torch.tensor([0, 0]), "step": torch.tensor([0, 1])}
        >>> streams["reward_reference_logprob"] = torch.tensor([-2.0, -2.0])
        >>> streams["worse_members"] = torch.tensor([1.0, 0.0])
        >>> tokens = Tokens(torch.tensor([-1.0, -3.0]), None, streams)  # S is 1 and -1
        >>> TrajectoryPairs(beta=1.0).evaluate(tokens)[0].item()  # an update makes the weight of the pair 1
        0.0635
    """

    beta: float = option(0.05, above=0)
    label: str = column_name("score", level="token")
    other: str = column_name("reward_reference_logprob", level="token", model="reward_reference")
    pairs: str = column_name("worse_members", level="token")
    reduce: Literal["sum", "mean"] = "sum"

    @property
    def normaliser(self) -> str:
        """Return the stream of each draw's number of pairs; their sum normalises the weights of an optimizer step."""
        return self.pairs

    def own_reads(self) -> Iterable[str | Column]:
        """Return the columns to read: weights, ids, labels, numbers of pairs, and the other model's log-probs."""
        steps = ("step",) if self.reduce == "mean" else ()
        return ("weight_kl", *steps, "sequence", "group", token(self.label), token(self.other), token(self.pairs))

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss over all pairs of trajectories of each task, and metrics."""
        sequences, members = tokens.segments("sequence"), tokens.members("group")
        score = self.beta * sequences.sum(tokens.log_ratio_to(self.other))
        if self.reduce == "mean":
            steps = tokens.segments("step")
            of_step = torch.zeros_like(steps.ids).scatter(0, steps.ids, sequences.ids)
            count = torch.zeros_like(steps.count).index_add(0, of_step, steps.exists.double()).clamp(min=1.0)
            score = score / count.to(tokens.logprob.dtype)
        label = sequences.mean(tokens.stream(self.label))
        # This waits for the device, but the matrix of pairs is then draws x draws, not rows x rows.
        num_draws = int(sequences.ids.max()) + 1 if len(sequences.ids) else 0
        score, label, group = score[:num_draws], label[:num_draws], members.ids[:num_draws]
        exist = members.counted[:num_draws]
        better = (label[:, None] > label) & (group[:, None] == group) & exist[:, None] & exist
        cost = torch.where(better, torch.nn.functional.softplus(score - score[:, None]), 0.0)
        weight = sequences.sum(tokens.stream("weight_kl"))[:num_draws].to(cost.dtype)
        loss = (weight * cost.sum(1)).sum()
        return loss, metric_sums(tokens, entropy=tokens.entropy)


ISTAR = Recipe(
    name="istar",
    source="arXiv:2509.19199",
    reward=(OutcomeScore(), WorseMembers(), ImplicitProcess(level="step")),
    advantage=(
        GroupRelative(column="process_reward", level="step", eps=0.0),
        GroupRelative(eps=0.0, singleton="raw", add=True),
    ),
    loss=(
        Train(TrajectoryPairs(), model="reward_model"),
        Policy(ratio=Ratio("step", "sum", "segment"), aggregate="step_mean"),
    ),
    hooks=SyncModel("policy", "reward_reference"),
)
