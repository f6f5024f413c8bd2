"""Scores minus a baseline that is not the plain mean of the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.advantage.normalisation import Normalisation
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, key_columns, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class BaselineRelative(BatchComponent):
    """advantage = score - b of each draw.

    By `baseline`, b is:

    - `column`: the column `column`, such as a task's value (DigiRL arXiv:2406.11896);
    - `weighted`: sum w r / sum w over the group, w the column `column` (the plain mean where the weights are all 0):
      OPO arXiv:2505.23585 (`column="trained_tokens"`), VCPO arXiv:2602.17616 (w = ratio^2 * norm of the score
      gradient^2);
    - `shrunk`: the group's mean, drawn towards the prior `column` as far as noise explains their distance (V0.5
      arXiv:2603.10848);
    - `log_mean_exp`: temperature * ln mean exp(r / temperature) over the group (A*-PO, OPMD).

    Draws without a score neither vote nor get a value.

    Args:
        baseline: as above.
        column: baseline, weight or prior of each draw; not for `log_mean_exp`.
        group_by: comma-joined key columns of the groups, or `batch`.
        variance: for `shrunk`: of one score, above 0: 0.25 for scores 0 and 1, 1 for scores -1 and 1.
        temperature: for `log_mean_exp`, above 0.
        singleton: for `weighted` and `log_mean_exp`: the only draw of a group that has a score gets 0 (`zero`), or its
            score, as if its baseline were 0 (`raw`, verl's OPO).
        leave_one_out: for `weighted` and `shrunk`: a draw does not vote in its own baseline.
        positive_only: advantages below 0 become 0.
        clip: advantages are cut to at most this size; None: they are not.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import BaselineRelative
        >>> BaselineRelative(baseline="weighted", column="entropy_score").needs
        (('draw', 'score'), ('draw', 'group_id'), ('draw', 'entropy_score'))
    """

    phase: ClassVar[str] = "advantage"

    baseline: Literal["column", "weighted", "shrunk", "log_mean_exp"] = "column"
    column: str = ""
    group_by: str = "group_id"
    variance: float = 0.25
    temperature: float = 0.5
    singleton: Literal["zero", "raw"] = "zero"
    leave_one_out: bool = False
    positive_only: bool = False
    clip: float | None = None

    def check_options(self) -> None:
        """Ranges and combinations as documented."""
        needs_column = self.baseline != "log_mean_exp"
        self.require(bool(self.column) == needs_column, "column", "name a column, but none for log_mean_exp")
        self.require(bool(self.group_by), "group_by", 'name key columns, or "batch"')
        for option in ("variance", "temperature"):
            self.require(getattr(self, option) > 0.0, option, "give a number above 0")
        votes = self.baseline in ("weighted", "shrunk")
        self.require(
            votes or not self.leave_one_out, "leave_one_out", "choose baseline weighted or shrunk, or give False"
        )
        of_group = self.baseline in ("weighted", "log_mean_exp")
        self.require(
            of_group or self.singleton == "zero", "singleton", 'choose baseline weighted or log_mean_exp, or "zero"'
        )
        self.require(self.clip is None or self.clip > 0.0, "clip", "give a number above 0, or None")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Score and group of each draw, and what the baseline is made of."""
        return needed("draw", "score", *key_columns(self.group_by), *((self.column,) if self.column else ()))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        score, groups = rows.values("score"), rows.keys(self.group_by)
        if self.baseline == "weighted":
            made = self._weighted(rows, score, groups)
        else:
            if self.baseline == "column":
                baseline = rows.values(self.column)
            elif self.baseline == "shrunk":
                prior = np.where(rows.valid, rows.values(self.column), 0.0)
                baseline = group.shrunk_mean(
                    score, groups, prior, variance=self.variance, leave_one_out=self.leave_one_out, valid=rows.valid
                )
            else:
                found = group.log_mean_exp(score, groups, temperature=self.temperature, valid=rows.valid)
                baseline = found[groups]
            made = np.where(rows.valid, score - baseline, 0.0)
        if self.singleton == "raw":
            alone = group.statistics(score, groups, valid=rows.valid).count[groups] == 1
            made = np.where(rows.valid & alone, score, made)
        bound = np.inf if self.clip is None else self.clip
        return rows.write(advantage=np.clip(made, 0.0 if self.positive_only else -bound, bound))

    def _weighted(self, rows: Rows, score: NDArray[np.float64], groups: NDArray[np.uint32]) -> NDArray[np.float64]:
        weights = rows.values(self.column)
        total = group.sums(np.where(rows.valid, weights, 0.0), groups)[groups]
        compare = Normalisation(center="leave_one_out" if self.leave_one_out else "mean", scale="none", min_count=1)
        return compare.compare(score, groups, valid=rows.valid, weights=np.where(total > 0.0, weights, 1.0))
