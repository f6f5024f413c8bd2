"""max@k: train for the best of k answers instead of their mean, also off-policy (arXiv:2510.23393).

The reward of an answer is its contribution to the expected best of 4 answers of its group of n. Let d be the ratio of
the whole answer minus 1, under the policy of each epoch. With rewards in ascending order:

    gradient = (1 / n) sum_i grad log pi(y_i) R'_i,    R'_i = sum over j >= i of w_ij R_j / C(n, 4)
    w_ii = C(i-1, 3) (1 + d_i) + C(i-2, 2) sum over l < i of d_l
    w_ij = C(j-2, 2) (1 + d_i + d_j) + C(j-3, 1) sum over l < j other than i of d_l

This is the gradient of max@k to first order in d. It is unbiased in the first epoch, where d is 0. A group needs at
least k answers, better 2 k.

The paper's baselines transform the rewards once, before the update. BoN mean is
`MAX_AT_K.replace(reward=(OutcomeScore(), MaxAtK(k=4)), advantage=GroupRelative(eps=0.0), loss=Policy(drift=KL(0.01)))`.
PKPO (arXiv:2505.15201) subtracts the expected best of the remaining answers: `MaxAtK(k=4, kind="leave_one_out")`.
verl's `grpo_passk` is `MaxAtK(kind="top_gap", scale="std")`.

Equations:
    Read: the paper.

    - 2, metric: the sum of the rewards of equation 9.
    - 4, objective: `OffPolicyMaxAtK`, with clip range 0.2 on the ratio of an answer and a KL of 0.01 to the policy that
      sampled.
    - 5, advantage: `GroupRelative(eps=0.0)` of the transformed rewards, an option (BoN mean).
    - 9, transformed reward: `OffPolicyMaxAtK` in the first epoch; once for all epochs with `MaxAtK`, an option.
    - 10, off-policy weights: `OffPolicyMaxAtK`, computed again in each of the three epochs.
    - N1, leave one out: `MaxAtK(kind="leave_one_out")`, an option.

Differs:
    - Clip: the paper clips a ratio times an advantage (equation 4), but the off-policy gradient has a ratio only in its
      weights. Here an answer has no gradient if its weight pushes its ratio further beyond the clip range.
    - Bound of d: Listing 3 of the paper clamps d by a number that is not given; here by the clip range.
    - KL: the paper's KL is to the policy that sampled, while GRPO's is to a reference model:
      `OffPolicyMaxAtK(kl=KL(0.01, column="reference_logprob"))`.
    - k: the paper does not give it; 4 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.loss import ADVANTAGES, KL, GroupLoss, Tokens, metric_sums, torch
from agentrl_core.operators.group_comparison import max_at_k, top_gap
from agentrl_core.reward import OutcomeScore

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class MaxAtK(BatchComponent):
    """Train for the best of k draws instead of their mean (max@k; pass@k for scores of 0 and 1).

    The score becomes the draw's contribution to the expected best of k draws of its group. With n scores in ascending
    order: s_i = [C(i-1, k-1) r_i + sum_{j>i} C(j-2, k-2) r_j] / C(n, k); its policy gradient is an unbiased estimate of
    the gradient of max@k. Follow it with `GroupRelative(center="none", scale="none")`, or with a baseline. Sources:
    arXiv:2510.23393 (`full`, `ratio`); PKPO arXiv:2505.15201 (`leave_one_out`); arXiv:2503.19595, verl's `grpo_passk`
    (`top_gap`, `scale="std"`).

    Args:
        k: number of draws of which the best counts; every group needs at least k valid draws.
        kind: `full`; `leave_one_out`: minus k/n times the max@(k-1) of the remaining draws; `top_gap`: the best draw
            scores its lead over the second best, all other draws score 0.
        scale: for `top_gap`: `std` divides by the standard deviation (ddof 1) of the group's scores + 1e-6.
        ratio: for `full`: name of a draw column with the log-ratio of the whole sequence, for the first-order
            off-policy correction. Empty: none.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.max_at_k import MaxAtK
        >>> MaxAtK(k=4).needs
        (draw('score'), draw('group_id'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    k: int = option(2, at_least=1)
    kind: Literal["full", "leave_one_out", "top_gap"] = "full"
    scale: Literal["none", "std"] = "none"
    ratio: str = column_name("", level="draw", optional=True)

    def check_options(self) -> None:
        """Check that `scale` and `ratio` are only set for the kinds that use them."""
        self.require(self.scale == "none" or self.kind == "top_gap", "scale", 'choose kind="top_gap", or scale="none"')
        self.require(not self.ratio or self.kind == "full", "ratio", 'choose kind="full", or leave ratio empty')

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a changed `score` on draws; draws without a score stay without one."""
        rows = Rows(batch, "draw")
        scores, groups, valid = rows.values("score"), rows.keys("group_id"), rows.valid
        if self.kind == "top_gap":
            shares = top_gap(scores, groups, valid=valid)
            if self.scale == "std":
                shares = shares / (group.statistics(scores, groups, valid=valid).std[groups] + 1e-6)
        else:
            shares = max_at_k(
                scores,
                groups,
                self.k,
                leave_one_out=self.kind == "leave_one_out",
                ratio_excess=np.expm1(rows.values(self.ratio)) if self.ratio else None,
                valid=valid,
            )
        return rows.write(score=np.where(valid, shares, np.nan))


@dataclass(frozen=True)
class OffPolicyMaxAtK(GroupLoss):
    """Follow the gradient of the expected best of k answers, also if an older policy sampled them.

    Let d be the detached ratio of an answer (the product of its tokens' ratios) minus 1, clamped to +-clip. Let A be
    the n advantages of a group in ascending order; they must be the rewards of the group:

        L = - mean over groups of (1/n) sum_i R_i log p(y_i)  +  kl * mean over tokens, then answers, of the KL
        R_i = sum over the subsets of k answers with i of (1 + sum of their d) (their largest A) / C(n, k)

    An answer has no gradient if R_i pushes its ratio further out of [1 - clip, 1 + clip]. A group of fewer than k
    answers has no gradient either. Source: arXiv:2510.23393, equation 10 and Appendix E.

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.
        k: number of answers of which the best counts, at least 1.
        clip: clip range, above 0, below 1.
        kl: penalty on the divergence from the old policy, or from the policy of its `column`; or None.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.max_at_k import OffPolicyMaxAtK
        >>> streams = {"weight_kl": torch.full((2,), 0.5), "advantage_positive": torch.tensor([0.5, 0.0])}  # A is 1, 0
        >>> streams |= {"advantage_negative": torch.zeros(2), "old_logprob": torch.tensor([-1.0, -2.0])}
        >>> streams |= {"sequence": torch.tensor([0, 1]), "group": torch.tensor([0, 0])}
        >>> tokens = Tokens(torch.tensor([-1.0, -2.0]), None, streams)  # both are in the one pair, whose best is 1
        >>> OffPolicyMaxAtK(k=2).evaluate(tokens)[0].item()
        1.5
    """

    reads: ClassVar[tuple[str | Column, ...]] = (*ADVANTAGES, "weight_kl", "sequence", "group", "old_logprob")

    k: int = option(4, at_least=1)
    clip: float = option(0.2, above=0, below=1)
    kl: KL | None = KL(0.01)  # noqa: RUF009 - frozen

    @property
    def equal_groups(self) -> bool:
        """Return True: the objective is the mean over questions of the mean over their answers."""
        return True

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the sum of transformed rewards times log-probs of answers, plus the KL penalty; and metrics."""
        sequences = tokens.segments("sequence")
        ratio = tokens.limited(sequences.sum(tokens.log_ratio.detach())).exp()
        reward = self._transformed(tokens, ratio)
        inside = torch.where(reward > 0, ratio <= 1.0 + self.clip, ratio >= 1.0 - self.clip)
        weight = tokens.stream("weight_kl")
        loss = -(sequences.sum(weight) * reward * inside * sequences.sum(tokens.logprob)).sum()
        metrics: dict[str, Any] = {"ratio": sequences.spread(ratio), "clip_fraction": sequences.spread(~inside)}
        if self.kl is not None:
            divergence = self.kl.divergence(tokens, "old_logprob")
            loss = loss + self.kl.coefficient * (weight * divergence).sum()
            metrics["drift"] = divergence
        return loss, metric_sums(tokens, entropy=tokens.entropy, **metrics)

    def _transformed(self, tokens: Tokens, ratio: Tensor) -> Tensor:
        """Return the off-policy max@k reward of each answer, by its rank in the group, without gradient."""
        sequences, members = tokens.segments("sequence"), tokens.members("group")
        reward = sequences.mean(tokens.advantage.detach()).double()
        excess = (ratio.double() - 1.0).clamp(-self.clip, self.clip)
        starts = members.spread(members.count.cumsum(0) - members.count).long()
        rank = members.rank(reward)
        place, rank = rank + starts, rank.double() + 1.0

        def below(values: Tensor) -> Tensor:
            """Return the sum over the answers of the group with a lower rank."""
            values = torch.where(members.counted, values, 0.0)
            total = torch.zeros_like(values).scatter(0, place, values).cumsum(0)
            return total[place] - values - torch.where(starts > 0, total[(starts - 1).clamp(min=0)], 0.0)

        def above(values: Tensor) -> Tensor:
            """Return the sum over the answers of the group with a higher rank."""
            return members.spread(members.sum(values)) - below(values) - values

        one, two, three = (_choose(rank - less, self.k - less) * reward for less in (1, 2, 3))
        lower = below(excess)
        totals = one * (1.0 + excess) + two * lower
        totals = totals + above(two * (1.0 + excess) + three * lower) + excess * above(two - three)
        subsets = members.spread(_choose(members.count, self.k))
        return torch.where(members.counted & (subsets > 0), totals / subsets.clamp(min=1.0), 0.0).to(tokens.logprob)


def _choose(size: Tensor, taken: int) -> Tensor:
    """Return binomial coefficients; 0 if `taken` exceeds the size or is negative."""
    coefficients = torch.full_like(size, float(taken >= 0))
    for number in range(taken):
        coefficients = coefficients * (size - number).clamp(min=0.0) / (number + 1.0)
    return coefficients


MAX_AT_K = Recipe(
    name="max_at_k",
    source="arXiv:2510.23393",
    reward=OutcomeScore(),
    advantage=GroupRelative(center="none", scale="none"),
    loss=OffPolicyMaxAtK(),
    epochs=3,
)
