"""max@k: train for the best of k answers instead of their mean (arXiv:2510.23393).

With the n rewards of a group ascending, an answer is paid what it adds to the expected best of 4 of them:

    R'_i = [C(i-1, 3) R_i + sum over j > i of C(j-2, 2) R_j] / C(n, 4),   A = R'

Its gradient is that of max@k without bias; a group needs at least k answers, better 2 k. Off-policy, to first order:
`MaxAtK(k=4, ratio=...)`, of ratios that are known before the update; those of its later epochs are left to the clip
range. PKPO (arXiv:2505.15201) subtracts what the others reach without it: `MaxAtK(k=4, kind="leave_one_out")`; verl's
`grpo_passk` is `MaxAtK(kind="top_gap", scale="std")`.

Equations:
    Read: the paper's sections 2.2, 3.1 to 3.3, 4.3 and 4.4, and notes of others.

    - 2, metric: what equation 9 sums to.
    - 5, advantage: `GroupRelative(eps=0.0)` of the transformed rewards, an option; the recipe takes them as they are,
      as in the gradient of equation 9.
    - 9, transformed reward: `MaxAtK`.
    - 10, off-policy weights: `MaxAtK(ratio=...)`, an option.
    - N1, leave one out: `MaxAtK(kind="leave_one_out")`, an option.

Differs:
    - Ratios of later epochs: equation 10 transforms the rewards again at each epoch; here they are transformed once.
    - k: no section that was read has it; 4 here.

Needs: the model reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.loss import KL, Policy
from agentrl_core.reward import OutcomeScore
from agentrl_core.reward.group_comparison import max_at_k, top_gap

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class MaxAtK(BatchComponent):
    """Train for the best of k draws instead of their mean (max@k; pass@k for 0 and 1).

    The score becomes what the draw adds to the expected best of k draws of its group. With n scores ascending:
    s_i = [C(i-1, k-1) r_i + sum_{j>i} C(j-2, k-2) r_j] / C(n, k), whose policy gradient is that of max@k without bias.
    Follow it with `GroupRelative(center="none", scale="none")`, or with a baseline. Sources: arXiv:2510.23393 (`full`,
    `ratio`); PKPO arXiv:2505.15201 (`leave_one_out`); arXiv:2503.19595, verl's `grpo_passk` (`top_gap`, `scale="std"`).

    Args:
        k: the best of how many; every group needs as many valid draws.
        kind: `full`; `leave_one_out`: minus k/n of the max@(k-1) of the others; `top_gap`: only the best draw gets
            something, its distance to the second.
        scale: for `top_gap`: `std` divides by the standard deviation (ddof 1) of the group's scores + 1e-6.
        ratio: for `full`: name of a draw column, the log-ratio of the whole sequence, for the first-order off-policy
            correction. Empty: none.

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
        """Each form has its own options."""
        self.require(self.scale == "none" or self.kind == "top_gap", "scale", 'choose kind="top_gap", or "none"')
        self.require(not self.ratio or self.kind == "full", "ratio", 'choose kind="full", or leave it empty')

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws; draws without a score keep none."""
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


MAX_AT_K = Recipe(
    name="max_at_k",
    source="arXiv:2510.23393",
    reward=(OutcomeScore(), MaxAtK(k=4)),
    advantage=GroupRelative(center="none", scale="none"),
    loss=Policy(kl=KL(0.01)),
    epochs=3,
)
