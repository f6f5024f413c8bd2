"""Scores for which the best of k draws counts, not the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import _core
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class MaxAtK(BatchComponent):
    """The score becomes what the draw adds to the expected best of k draws of its group (max@k; pass@k for 0 and 1).

    With n scores ascending: s_i = [C(i-1, k-1) r_i + sum_{j>i} C(j-2, k-2) r_j] / C(n, k), whose policy gradient is
    that of max@k without bias. Follow it with `GroupRelative(center="none", scale="none")`, or with a baseline.
    Sources: arXiv:2510.23393 (`full`, `ratio`); PKPO arXiv:2505.15201 (`leave_one_out`); arXiv:2503.19595, verl's
    `grpo_passk` (`top_gap`, `scale="std"`).

    Args:
        k: the best of how many, at least 1; every group needs as many valid draws.
        variant: `full`; `leave_one_out`: minus k/n of the max@(k-1) of the others; `top_gap`: only the best draw gets
            something, its distance to the second.
        scale: for `top_gap`: `std` divides by the standard deviation (ddof 1) of the group's scores + 1e-6.
        ratio: for `full`: name of a draw column, the log-ratio of the whole sequence, for the first-order off-policy
            correction. Empty: none.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import MaxAtK
        >>> MaxAtK(k=4).needs
        (('draw', 'score'), ('draw', 'group_id'))
    """

    phase: ClassVar[str] = "reward"

    k: int = 2
    variant: Literal["full", "leave_one_out", "top_gap"] = "full"
    scale: Literal["none", "std"] = "none"
    ratio: str = ""

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.k >= 1, "k", "give a number of at least 1")
        self.require(self.scale == "none" or self.variant == "top_gap", "scale", 'choose variant="top_gap", or "none"')
        self.require(not self.ratio or self.variant == "full", "ratio", 'choose variant="full", or leave it empty')

    @property
    def needs(self) -> tuple[Column, ...]:
        """Score and group of each draw."""
        return needed("draw", "score", "group_id", *((self.ratio,) if self.ratio else ()))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score again."""
        return (("draw", "score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws; draws without a score keep none."""
        rows = Rows(batch, "draw")
        score, groups, valid = rows.values("score"), rows.keys("group_id"), rows.valid
        if self.variant == "top_gap":
            made = _core.reward_top_gap(score, groups, valid=valid)
            if self.scale == "std":
                made = made / (group.statistics(score, groups, valid=valid).std[groups] + 1e-6)
        else:
            made = _core.reward_max_at_k(
                score,
                groups,
                k=self.k,
                leave_one_out=self.variant == "leave_one_out",
                ratio_excess=np.expm1(rows.values(self.ratio)) if self.ratio else None,
                valid=valid,
            )
        return rows.write(score=np.where(valid, made, np.nan))
