"""Which tokens are in the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed, sums
from agentrl_core.weight.factors import conflict_tokens
from agentrl_core.weight.select import above_quantile, top

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class SelectTokens(BatchComponent):
    """Only the tokens with the largest values of a column are in the loss, or all but them.

    Compared are the trained tokens of draws with a score. The column is a fact of the rollout; what the policy is now
    chooses tokens in the loss, update by update (`loss.TopShare`). With `column="entropy"` it is an approximation of
    that: 80/20 forking tokens, arXiv:2506.01939, by the entropies of the rollout.

    Args:
        column: token column to judge by.
        rule: `top`: the largest `fraction`; `quantile`: those at or above the quantile `1 - fraction`.
        scope: compared with the tokens of the `batch`, or of their `draw`.
        fraction: from 0 to 1.
        rounding: how many that is, of `top`: `floor`, `ceil` or `nearest`.
        minimum: of `top`: at least so many, where there are.
        strict: of `quantile`: above it only.
        action: `keep` the chosen tokens, or `drop` them.
        denominator: `all`: tokens that are left out have weight 0 and still count in the denominator of the loss, as in
            public code; `kept`: they do not count.
        among: compared are `all` tokens, or those `kept` by earlier links.

    Raises:
        RecipeError: an option is out of range, or the column has no known value.

    Example:
        >>> from agentrl_core.weight import SelectTokens
        >>> SelectTokens(column="entropy").makes
        (('token', 'weight'),)
    """

    phase: ClassVar[str] = "weight"

    column: str = "entropy"
    rule: Literal["top", "quantile"] = "quantile"
    scope: Literal["batch", "draw"] = "batch"
    fraction: float = 0.2
    rounding: Literal["floor", "ceil", "nearest"] = "floor"
    minimum: int = 0
    strict: bool = False
    action: Literal["keep", "drop"] = "keep"
    denominator: Literal["all", "kept"] = "all"
    among: Literal["all", "kept"] = "all"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 <= self.fraction <= 1.0, "fraction", "give a number from 0 to 1")
        self.require(self.minimum >= 0, "minimum", "give a number of at least 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The column."""
        return (("token", self.column),)

    @property
    def makes(self) -> tuple[Column, ...]:
        """What leaves the other tokens out."""
        return needed("token", "weight" if self.denominator == "all" else "keep")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `weight` or `keep` on tokens."""
        rows = Rows(batch, "token")
        known = rows.known(self.column)
        if self.among == "kept" and batch.has("keep", "token"):
            known &= rows.flags("keep")
        chosen = self._chosen(rows, np.where(known, rows.values(self.column), 0.0), known)
        stays = ~chosen if self.action == "drop" else chosen
        return rows.scale(stays.astype(np.float64)) if self.denominator == "all" else rows.keep(stays)

    def _chosen(self, rows: Rows, values: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        groups = rows.draws if self.scope == "draw" else rows.keys("batch")
        if self.rule == "quantile":
            return above_quantile(values, groups, q=1.0 - self.fraction, strict=self.strict, valid=known)
        return top(values, groups, fraction=self.fraction, rounding=self.rounding, at_least=self.minimum, valid=known)


@dataclass(frozen=True)
class ConflictTokens(BatchComponent):
    """Tokens that good and bad draws of a group both begin or end with weigh `positive` or `negative`.

    A token conflicts where the same token stands at the same place, from the start (or from the end) of the draw's
    action tokens, in a draw with a positive and in one with a negative advantage, and so do all before (after) it. A
    token that conflicts from both ends takes the factor twice. Source: GTPO, arXiv:2508.03772. Its public code also
    divides each draw's loss by its number of conflict tokens (`per_count=True`).

    Args:
        positive: factor where the advantage is above 0.
        negative: factor where it is below.
        both_ends: whether places are counted from the end as well as from the start.
        per_count: whether all weights of a draw are divided by how many of its tokens conflict, if any do.

    Example:
        >>> from agentrl_core.weight import ConflictTokens
        >>> ConflictTokens().needs
        (('token', 'token'), ('draw', 'group_id'), ('draw', 'advantage'))
    """

    phase: ClassVar[str] = "weight"

    positive: float = 2.0
    negative: float = 0.0
    both_ends: bool = True
    per_count: bool = False

    @property
    def needs(self) -> tuple[Column, ...]:
        """Token ids, and the advantages of draws."""
        return (("token", "token"), *needed("draw", "group_id", "advantage"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight of each token."""
        return (("token", "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        draws, tokens = Rows(batch, "draw"), Rows(batch, "token")
        advantage = np.where(draws.valid, draws.values("advantage"), 0.0)
        ends = conflict_tokens(
            batch.column("token", "token"),
            batch.offsets("token")[batch.offsets("step")],
            draws.keys("group_id"),
            advantage,
        )
        sign = advantage[tokens.draws]
        factor = np.where(sign > 0.0, self.positive, np.where(sign < 0.0, self.negative, 1.0))
        weight = np.where(ends[0], factor, 1.0)
        conflicts = ends[0]
        if self.both_ends:
            weight *= np.where(ends[1], factor, 1.0)
            conflicts = conflicts | ends[1]
        if self.per_count:
            counts = sums(conflicts.astype(np.float64), tokens.draws, len(draws))
            weight /= np.maximum(counts, 1.0)[tokens.draws]
        return tokens.scale(weight)
