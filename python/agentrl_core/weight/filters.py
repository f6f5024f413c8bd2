"""Mask draws in the loss by facts about them or their group; masked draws still count in statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.operators import filters
from agentrl_core.select.success_band import Band

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class GroupFilter(BatchComponent):
    """Mask groups with little learning signal: too easy, too hard, or uniform.

    It applies after the advantages; `select.DynamicSampling` rejects groups before. Sources besides those of
    `select.Band`: LOOP arXiv:2502.01600 (the defaults); SRPO arXiv:2511.15605 (`column="success"`, means from 0.1 to
    0.9); SPEAR arXiv:2509.22601 (`band=Band(std_above=None), top_fraction=0.75`).

    Args:
        column: draw column.
        band: the groups that stay.
        top_fraction: share of groups that stay, those with the largest standard deviations, at least one.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select import Band
        >>> from agentrl_core.weight import GroupFilter
        >>> GroupFilter(band=Band(at_least=0.1, at_most=0.9)).needs
        (draw('group_id'), draw('score'))
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (draw("group_id"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("keep"),)

    column: str = column_name("score", level="draw")
    band: Band = Band()
    top_fraction: float = option(1.0, above=0.0, at_most=1.0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new `keep` on draws."""
        rows = Rows(batch, "draw")
        values, groups = rows.values(self.column), rows.keys("group_id")
        counted = rows.valid & np.isfinite(values)
        kept = self.band.holds(values, groups, valid=counted)
        if self.top_fraction < 1.0:
            kept &= filters.top_groups(values, groups, self.top_fraction, ddof=self.band.ddof, valid=counted)
        return rows.keep(kept)


@dataclass(frozen=True)
class FlagFilter(BatchComponent):
    """Mask draws with a problem flag, or that are too long.

    Their scores still vote: SimpleTIR, arXiv:2509.02479 (`flags="void"`), SPEAR arXiv:2509.22601, and overlong
    filtering of DAPO, arXiv:2503.14476 (`flags="truncated"`). Use `reward.Unscored` for draws that must not vote.

    Args:
        flags: comma-joined names of columns, in which numbers other than 0 mark a problem, or `env.StepFlag`s of steps
            in lower case; empty: none.
        level: level of these columns: `draw` or `step`.
        shorter_than: draws with this many action tokens or more are masked; None: no limit.

    Raises:
        RecipeError: no condition is given, or a length is not above 0.

    Example:
        >>> from agentrl_core.weight import FlagFilter
        >>> FlagFilter(flags="void,tool_error").needs
        (step('void'), step('tool_error'))
    """

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (draw("keep"),)

    flags: str = column_name("truncated", level="level", optional=True)
    level: Literal["draw", "step"] = "step"
    shorter_than: int | None = option(None, above=0)

    def check_options(self) -> None:
        """Require at least one condition: flags or a length."""
        self.require(bool(self.flags) or self.shorter_than is not None, "flags", "name columns, or give shorter_than")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new `keep` on draws."""
        draws = Rows(batch, "draw")
        kept = np.ones(len(draws), dtype=np.bool_)
        if self.flags:
            kept &= ~Rows(batch, self.level).flagged(self.flags)
        if self.shorter_than is not None:
            lengths = np.diff(batch.offsets("token")[batch.offsets("step")])
            kept &= lengths < self.shorter_than
        return draws.keep(kept)
