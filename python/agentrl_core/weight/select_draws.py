"""Which draws are in the loss, by their advantage and their kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group
from agentrl_core.operators.filters import round_rows
from agentrl_core.weight.select import above_quantile, max_variance_subset, quota, top

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class SelectDraws(BatchComponent):
    """Keeps the draws of each group that teach most; the others leave the loss, and their advantages stay.

    - `magnitude`: the largest |x| (CPPO, arXiv:2503.22342: `fraction` is 1 minus its pruning rate; verl: `scope=
      "batch"`), and of those the ones with |x| >= `least` (LOOP, arXiv:2502.01600: `least=0.01, scope="batch",
      round_up=True, multiple=ranks`);
    - `max_variance`: those whose x has the largest variance (D3S, arXiv:2509.22115: `scope="batch"`; PODS
      arXiv:2504.13818);
    - `quantile`: x at or above the quantile 1 - `fraction` (DigiRL, arXiv:2406.11896: `fraction=0.1`);
    - `pivot`: all but the draw whose |x| is smallest, the first of equal ones: with a median baseline over an odd
      group its advantage is 0 (MC-GRPO, arXiv:2601.22582);
    - `quota`: `count` of each group, successes and failures in their proportion, of the successes those with the
      smallest `penalty` (rStar2-Agent, arXiv:2508.20722). `seed` draws failures at random, as in the paper; without
      one the first are taken, as in its code.

    Args:
        rule: see above.
        column: draw column x.
        scope: within each `group`, or over the whole `batch`.
        fraction: of the draws, from 0 to 1; at least one is kept.
        count: so many instead; None: by `fraction`.
        least: of `magnitude`: the smallest |x| that is kept.
        positive_only: only x above 0 are kept.
        minimum: of `quota`: the least number of successes and of failures, where there are as many.
        penalty: of `quota`: draw column; empty: none.
        seed: of `quota`; None: the first failures.
        multiple: the number of draws kept is a multiple of this.
        round_up: whether dropped draws come back to fill the multiple; else kept ones with the smallest |x| leave.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.weight import SelectDraws
        >>> SelectDraws(fraction=0.5).makes
        (('draw', 'keep'),)
    """

    phase: ClassVar[str] = "weight"

    rule: Literal["magnitude", "max_variance", "quantile", "pivot", "quota"] = "magnitude"
    column: str = "advantage"
    scope: Literal["group", "batch"] = "group"
    fraction: float = 1.0
    count: int | None = None
    least: float = 0.0
    positive_only: bool = False
    minimum: int = 2
    penalty: str = ""
    seed: int | None = None
    multiple: int = 1
    round_up: bool = False

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 <= self.fraction <= 1.0, "fraction", "give a number from 0 to 1")
        self.require(self.count is None or self.count >= 1, "count", "give a number of at least 1, or None")
        self.require(self.rule != "quota" or self.count is not None, "count", "say how many draws a group keeps")
        self.require(self.least >= 0.0, "least", "give a number of at least 0")
        self.require(self.minimum >= 0, "minimum", "give a number of at least 0")
        self.require(self.seed is None or self.seed >= 0, "seed", "give a number of at least 0, or None")
        self.require(self.multiple >= 1, "multiple", "give a number of at least 1")

    @property
    def needs(self) -> tuple[Column, ...]:
        """What draws are judged by, and their groups."""
        kind = ("success", *((self.penalty,) if self.penalty else ())) if self.rule == "quota" else ()
        return needed("draw", self.column, "group_id", *kind)

    @property
    def makes(self) -> tuple[Column, ...]:
        """Which draws are kept."""
        return (("draw", "keep"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `keep` on draws."""
        rows = Rows(batch, "draw")
        values = rows.values(self.column)
        known = rows.valid & np.isfinite(values)
        values = np.where(known, values, 0.0)
        kept = self._chosen(rows, values, known)
        if self.positive_only:
            kept &= values > 0.0
        if self.multiple > 1:
            kept = round_rows(kept, self.multiple, scores=np.abs(values), up=self.round_up, valid=known)
        return rows.keep(kept)

    def _chosen(self, rows: Rows, values: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        groups = rows.keys("group_id" if self.scope == "group" else "batch")
        fraction = self.fraction if self.count is None else None
        if self.rule == "magnitude":
            size = np.abs(values)
            minimum = 0 if fraction is None else 1
            chosen = top(size, groups, count=self.count, fraction=fraction, at_least=minimum, valid=known)
            return chosen & (size >= self.least)
        if self.rule == "max_variance":
            minimum = 0 if fraction is None else 1
            return max_variance_subset(
                values, groups, count=self.count, fraction=fraction, at_least=minimum, valid=known
            )
        if self.rule == "quantile":
            return above_quantile(values, groups, q=1.0 - self.fraction, valid=known)
        if self.rule == "pivot":
            pivots = group.arg_extreme(np.abs(values), groups, largest=False, valid=known)
            known = known.copy()
            known[pivots[pivots >= 0]] = False
            return known
        penalty = rows.values(self.penalty) if self.penalty else np.zeros(len(rows))
        return quota(
            np.where(known, penalty, 0.0),
            rows.flags("success"),
            groups,
            target=self.count or 0,
            failures_at_least=self.minimum,
            successes_at_least=self.minimum,
            seed=self.seed,
            ids=rows.values("trajectory_id").astype(np.int64),
            valid=known,
        )
