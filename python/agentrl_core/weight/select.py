"""Mask all but the rows or tokens that a rule selects by their scores.

Every selector takes scores, group ids (None: all rows are one group) and `valid`, and returns `bool[n]`, False in rows
that are not valid. Selection does not renormalise: choose the denominator of the loss yourself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option, token
from agentrl_core.operators.filters import round_rows
from agentrl_core.operators.group.reduce import arg_extreme
from agentrl_core.operators.row_selection import above_quantile, max_variance_subset, top_rows

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class SelectDraws(BatchComponent):
    """Keep the most informative draws of each group; the others are masked, and advantages do not change.

    - `magnitude`: the largest |x| (CPPO, arXiv:2503.22342: `fraction` is 1 minus its pruning rate; verl:
      `group_by="batch"`), restricted to |x| >= `at_least` (LOOP, arXiv:2502.01600: `at_least=0.01,
      group_by="batch", round_up=True, multiple=ranks, denominator="all"`);
    - `max_variance`: those whose x has the largest variance (D3S, arXiv:2509.22115: `group_by="batch"`; PODS
      arXiv:2504.13818);
    - `quantile`: x at or above the quantile 1 - `fraction` (DigiRL, arXiv:2406.11896: `fraction=0.1`);
    - `pivot`: all but the draw with the smallest |x| (ties: the first): with a median baseline over an odd
      group its advantage is 0 (MC-GRPO, arXiv:2601.22582).

    Args:
        kind: see above.
        column: draw column x.
        group_by: key columns of the groups to select within; `batch`: all draws.
        fraction: share of the draws; at least one is kept.
        count: number of draws instead; None: use `fraction`.
        at_least: for `magnitude`: the smallest |x| that is kept.
        positive_only: whether only x above 0 are kept.
        multiple: the number of kept draws is a multiple of this.
        round_up: whether masked draws come back to fill the multiple; otherwise kept ones with the smallest |x| are
            masked.
        denominator: `kept`: masked draws do not count in the denominator of the loss; `all`: they have weight 0 and
            count, so that the weights of the others do not change.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.weight import SelectDraws
        >>> SelectDraws(fraction=0.5).makes
        (draw('keep'),)
    """

    phase: ClassVar[str] = "weight"

    kind: Literal["magnitude", "max_variance", "quantile", "pivot"] = "magnitude"
    column: str = column_name("advantage", level="draw")
    group_by: str = column_name("group_id", level="draw")
    fraction: float = option(1.0, at_least=0.0, at_most=1.0)
    count: int | None = option(None, at_least=1)
    at_least: float = option(0.0, at_least=0.0)
    positive_only: bool = False
    multiple: int = option(1, at_least=1)
    round_up: bool = False
    denominator: Literal["kept", "all"] = "kept"

    def own_makes(self) -> tuple[Column, ...]:
        """Columns `keep`, or `weight` with 0 for masked draws."""
        return (draw("keep" if self.denominator == "kept" else "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new `keep` or `weight` on draws."""
        rows = Rows(batch, "draw")
        values = rows.values(self.column)
        known = rows.valid & np.isfinite(values)
        values = np.where(known, values, 0.0)
        kept = self._chosen(rows, values, known)
        if self.positive_only:
            kept &= values > 0.0
        if self.multiple > 1:
            kept = round_rows(kept, self.multiple, scores=np.abs(values), up=self.round_up, valid=known)
        return rows.keep(kept) if self.denominator == "kept" else rows.scale(kept.astype(np.float64))

    def _chosen(self, rows: Rows, values: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        groups = rows.keys(self.group_by)
        if self.kind == "quantile":
            return above_quantile(values, groups, q=1.0 - self.fraction, valid=known)
        if self.kind == "pivot":
            pivots = arg_extreme(np.abs(values), groups, largest=False, valid=known)
            known = known.copy()
            known[pivots[pivots >= 0]] = False
            return known
        fraction, at_least = (self.fraction, 1) if self.count is None else (None, 0)
        if self.kind == "max_variance":
            return max_variance_subset(
                values, groups, count=self.count, fraction=fraction, at_least=at_least, valid=known
            )
        sizes = np.abs(values)
        chosen = top_rows(sizes, groups, count=self.count, fraction=fraction, at_least=at_least, valid=known)
        return chosen & (sizes >= self.at_least)


@dataclass(frozen=True)
class SelectTokens(BatchComponent):
    """Keep in the loss only the tokens with the largest values of a column.

    It compares the trained tokens of scored draws that earlier components kept. The column is a fact of the rollout. To
    select by the current policy in each update, use `loss.TopTokens`. With `column="entropy"` it is an approximation of
    that: 80/20 forking tokens, arXiv:2506.01939, by the entropies of the rollout.

    Args:
        column: token column to compare.
        kind: `quantile`: tokens at or above the quantile `1 - fraction`; `top`: the largest `fraction` (ties: the
            first).
        group_by: compare within the `batch`, or within each `draw`.
        fraction: share of the tokens.
        rounding: rounding of the number for `top`: `floor`, `ceil` or `nearest`.
        denominator: `all`: masked tokens have weight 0 and still count in the denominator of the loss; `kept`: they do
            not count.

    Raises:
        RecipeError: an option is out of range, or the column has no known value.

    Example:
        >>> from agentrl_core.weight import SelectTokens
        >>> SelectTokens(denominator="kept").makes
        (token('keep'),)
    """

    phase: ClassVar[str] = "weight"

    column: str = column_name("entropy", level="token")
    kind: Literal["quantile", "top"] = "quantile"
    group_by: Literal["batch", "draw"] = "batch"
    fraction: float = option(0.2, at_least=0.0, at_most=1.0)
    rounding: Literal["floor", "ceil", "nearest"] = "floor"
    denominator: Literal["all", "kept"] = "all"

    def own_makes(self) -> tuple[Column, ...]:
        """Columns `keep`, or `weight` with 0 for masked tokens."""
        return (token("keep" if self.denominator == "kept" else "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new `keep` or `weight` on tokens."""
        rows = Rows(batch, "token")
        known = rows.known(self.column)
        values = np.where(known, rows.values(self.column), 0.0)
        if batch.has("keep", "token"):
            known &= rows.flags("keep")
        groups = rows.draws if self.group_by == "draw" else rows.keys("batch")
        if self.kind == "quantile":
            chosen = above_quantile(values, groups, q=1.0 - self.fraction, valid=known)
        else:
            chosen = top_rows(values, groups, fraction=self.fraction, rounding=self.rounding, valid=known)
        return rows.keep(chosen) if self.denominator == "kept" else rows.scale(chosen.astype(np.float64))
