"""Selectors that turn scores into loss masks of rows or tokens, and components that apply them.

Every selector takes scores, group ids (None: all rows are one group) and `valid`, and returns `bool[n]`, False in rows
that are not valid. Selection does not renormalise: choose the denominator of the loss yourself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option, token
from agentrl_core.operators import columns
from agentrl_core.operators.filters import round_rows
from agentrl_core.operators.group.reduce import arg_extreme

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


def top_rows(
    scores: object,
    group_ids: object | None = None,
    *,
    count: int | None = None,
    fraction: float | None = None,
    rounding: Literal["floor", "ceil", "nearest"] = "floor",
    at_least: int = 0,
    largest: bool = True,
    ties: Literal["first", "all"] = "first",
    valid: object | None = None,
) -> NDArray[np.bool_]:
    """Select the rows of each group with the largest scores, in O(n). CPPO, arXiv:2503.22342; VPPO, arXiv:2510.09285.

    Args:
        scores: n numbers.
        group_ids: n group ids; None: one group.
        count: number of rows per group; give it or `fraction`.
        fraction: share of the valid rows of the group, from 0 to 1, rounded by `rounding`, at least `at_least`.
        rounding: `floor`, `ceil` or `nearest` (halves to even).
        at_least: see `fraction`.
        largest: False selects the smallest scores.
        ties: among rows equal to the last selected one, select the earlier (`first`) or all (`all`).
        valid: n booleans; rows that are False are not selected. None: all rows are valid.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or not exactly one of count and fraction is
            given.

    Example:
        >>> from agentrl_core.weight.select import top_rows
        >>> top_rows([1.0, 3.0, 2.0, 9.0], ["a", "a", "a", "b"], count=1).tolist()
        [False, True, False, True]
    """
    numbers = columns.numbers(scores, "scores")
    # Without ids, the core searches all rows at once, which is faster for a long column.
    groups = None if group_ids is None else columns.keys(group_ids, "group_ids", length=len(numbers))
    return _core.weight.top(
        numbers,
        groups,
        count=count,
        fraction=fraction,
        rounding=rounding,
        at_least=at_least,
        largest=largest,
        ties=ties,
        valid=columns.mask(valid, "valid", length=len(numbers)),
    )


def above_quantile(
    scores: object,
    group_ids: object | None = None,
    *,
    q: float,
    interpolation: Literal["linear", "lower", "higher", "nearest", "midpoint"] = "linear",
    strict: bool = False,
    valid: object | None = None,
) -> NDArray[np.bool_]:
    """Select rows at or above the q-quantile of their group. 80/20 forking tokens, arXiv:2506.01939: q=0.8.

    Args:
        scores: n numbers.
        group_ids: n group ids (of sequences, for a quantile of each); None: one group.
        q: from 0 to 1.
        interpolation: as in `numpy.quantile`.
        strict: whether to select only rows above the quantile.
        valid: n booleans; rows that are False neither vote nor are selected. None: all rows are valid.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or q is out of range.

    Example:
        >>> from agentrl_core.weight.select import above_quantile
        >>> above_quantile([1.0, 2.0, 3.0, 4.0], q=0.5).tolist()
        [False, False, True, True]
    """
    numbers, groups, mask = columns.scored(scores, group_ids, valid)
    return _core.weight.above_quantile(
        numbers,
        groups,
        q=q,
        interpolation=interpolation,
        strict=strict,
        valid=mask,
    )


def max_variance_subset(
    scores: object,
    group_ids: object | None = None,
    *,
    count: int | None = None,
    fraction: float | None = None,
    rounding: Literal["floor", "ceil", "nearest"] = "floor",
    at_least: int = 0,
    valid: object | None = None,
) -> NDArray[np.bool_]:
    """Select the rows of each group with the largest score variance: some lowest and some highest, O(n log n).

    PODS, arXiv:2504.13818; D3S, arXiv:2509.22115. Equal scores: the first rows.

    Args:
        scores: n numbers.
        group_ids: n group ids; None: one group.
        count: number of rows per group; give it or `fraction`.
        fraction: share of the valid rows of the group, rounded by `rounding`, at least `at_least`.
        rounding: `floor`, `ceil` or `nearest`.
        at_least: see `fraction`.
        valid: n booleans; rows that are False are not selected. None: all rows are valid.

    Raises:
        InvalidInputError: as for `top_rows`.

    Example:
        >>> from agentrl_core.weight.select import max_variance_subset
        >>> max_variance_subset([0.0, 0.5, 0.6, 1.0], count=2).tolist()
        [True, False, False, True]
    """
    numbers, groups, mask = columns.scored(scores, group_ids, valid)
    return _core.weight.max_variance(
        numbers.astype(np.float64, copy=False),
        groups,
        count=count,
        fraction=fraction,
        rounding=rounding,
        at_least=at_least,
        valid=mask,
    )


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
    """Keep only tokens with the largest values of a column in the loss.

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
