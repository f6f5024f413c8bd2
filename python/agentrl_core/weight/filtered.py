"""Draws that leave the loss by a fact about them or their group. Statistics were made before, with them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, key_columns, needed
from agentrl_core.operators import filters

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class GroupFilter(BatchComponent):
    """Keeps groups whose scores vary and whose mean lies in a band.

    It works after the advantages are made; `select.DynamicSampling` rejects groups before. Sources: LOOP
    arXiv:2502.01600 (`min_std=0.0`); UI-S1 arXiv:2509.11543 (`min_std=0.3`); SimpleTIR arXiv:2509.02479
    (`min_std=1e-3, low=0.1, high=0.9`); SRPO arXiv:2511.15605 (`column="success", low=0.1, high=0.9`); PRIME
    arXiv:2502.01456 (`low=0.2, high=0.8`); EMPO arXiv:2504.05812 (`low=0.3`); SPEAR arXiv:2509.22601
    (`top_fraction=0.75`).

    Args:
        column: draw column.
        min_std: the standard deviation must be above this; None: not asked.
        ddof: 0 divides the variance by n, 1 by n - 1.
        low: the least mean; None: none.
        high: the largest mean; None: none.
        min_count: the least number of draws with a score.
        top_fraction: of all groups, those with the largest standard deviations, at least one.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.weight import GroupFilter
        >>> GroupFilter(low=0.1, high=0.9).needs
        (('draw', 'score'), ('draw', 'group_id'))
    """

    phase: ClassVar[str] = "weight"

    column: str = "score"
    min_std: float | None = 0.0
    ddof: int = 0
    low: float | None = None
    high: float | None = None
    min_count: int = 1
    top_fraction: float = 1.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.min_std is None or self.min_std >= 0.0, "min_std", "give a number of at least 0, or None")
        self.require(self.ddof in (0, 1), "ddof", "give 0 or 1")
        self.require(
            self.low is None or self.high is None or self.low <= self.high, "low", "give a number of at most high"
        )
        self.require(self.min_count >= 1, "min_count", "give a number of at least 1")
        self.require(0.0 < self.top_fraction <= 1.0, "top_fraction", "give a number above 0, at most 1")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The values, and the groups."""
        return needed("draw", self.column, "group_id")

    @property
    def makes(self) -> tuple[Column, ...]:
        """Which draws are kept."""
        return (("draw", "keep"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `keep` on draws."""
        rows = Rows(batch, "draw")
        values, groups = rows.values(self.column), rows.keys("group_id")
        counted = rows.valid & np.isfinite(values)
        kept = filters.group_band(
            values,
            groups,
            std_above=self.min_std,
            at_least=self.low,
            at_most=self.high,
            members_at_least=self.min_count,
            ddof=self.ddof,
            valid=counted,
        )
        if self.top_fraction < 1.0:
            kept &= filters.top_groups(values, groups, self.top_fraction, ddof=self.ddof, valid=counted)
        return rows.keep(kept)


@dataclass(frozen=True)
class FlagFilter(BatchComponent):
    """Keeps draws none of whose steps (or which themselves) are flagged, and that are shorter than a limit.

    Their scores have voted: SimpleTIR, arXiv:2509.02479 (`flags="void"`), SPEAR arXiv:2509.22601, and overlong
    filtering of DAPO, arXiv:2503.14476 (`flags="truncated"`). Draws that must not vote get no score instead:
    `reward.Unscored`.

    Args:
        flags: comma-joined names of columns that are other than 0 where something is wrong, or of steps'
            `env.StepFlag`s in small letters; empty: none.
        level: of these columns: `draw` or `step`.
        limit: draws with this many action tokens or more are not kept; None: however long.

    Raises:
        RecipeError: nothing is asked for, or the limit is not above 0.

    Example:
        >>> from agentrl_core.weight import FlagFilter
        >>> FlagFilter(flags="void,tool_error").needs
        (('step', 'void'), ('step', 'tool_error'))
    """

    phase: ClassVar[str] = "weight"

    flags: str = "truncated"
    level: Literal["draw", "step"] = "step"
    limit: int | None = None

    def check_options(self) -> None:
        """Combinations as documented."""
        self.require(bool(self.flags) or self.limit is not None, "flags", "name columns, or give a limit")
        self.require(self.limit is None or self.limit > 0, "limit", "give a number above 0, or None")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The flags."""
        return needed(self.level, *key_columns(self.flags))

    @property
    def makes(self) -> tuple[Column, ...]:
        """Which draws are kept."""
        return (("draw", "keep"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `keep` on draws."""
        flagged, draws = Rows(batch, self.level), Rows(batch, "draw")
        offsets = batch.offsets("step") if self.level == "step" else np.arange(len(draws) + 1)
        kept = np.ones(len(draws), dtype=np.bool_)
        for name in key_columns(self.flags):
            kept &= filters.unflagged(flagged.flags(name), offsets)
        if self.limit is not None:
            lengths = np.diff(batch.offsets("token")[batch.offsets("step")])
            kept &= filters.not_overlong(lengths, self.limit)
        return draws.keep(kept)


@dataclass(frozen=True)
class DuplicateFilter(BatchComponent):
    """Keeps the first of the draws of a group that say the same: equal action tokens.

    Example:
        >>> from agentrl_core.weight import DuplicateFilter
        >>> DuplicateFilter().makes
        (('draw', 'keep'),)
    """

    phase: ClassVar[str] = "weight"

    @property
    def needs(self) -> tuple[Column, ...]:
        """Tokens and groups."""
        return (("token", "token"), ("draw", "group_id"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """Which draws are kept."""
        return (("draw", "keep"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `keep` on draws."""
        rows = Rows(batch, "draw")
        tokens, bounds = batch.column("token", "token"), batch.offsets("token")[batch.offsets("step")]
        contents = [tokens[first:last].tobytes() for first, last in itertools.pairwise(bounds)]
        return rows.keep(filters.first_of_equal(contents, rows.keys("group_id"), valid=rows.valid))
