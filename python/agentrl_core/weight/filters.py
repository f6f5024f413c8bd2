"""Draws that leave the loss by a fact about them or their group. Statistics were made before, with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.operators import filters
from agentrl_core.select.band import Band

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class GroupFilter(BatchComponent):
    """Leaves groups out of the loss that teach little: too easy, too hard, or all alike.

    It works after the advantages are made; `select.DynamicSampling` rejects groups before. Sources beside those of
    `select.Band`: LOOP arXiv:2502.01600 (the defaults); SRPO arXiv:2511.15605 (`column="success"`, means from 0.1 to
    0.9); SPEAR arXiv:2509.22601 (`band=Band(std_above=None), top_fraction=0.75`).

    Args:
        column: draw column.
        band: which groups stay.
        top_fraction: of all groups, those with the largest standard deviations stay, at least one.

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
        """Return `batch` with another `keep` on draws."""
        rows = Rows(batch, "draw")
        values, groups = rows.values(self.column), rows.keys("group_id")
        counted = rows.valid & np.isfinite(values)
        kept = self.band.holds(values, groups, valid=counted)
        if self.top_fraction < 1.0:
            kept &= filters.top_groups(values, groups, self.top_fraction, ddof=self.band.ddof, valid=counted)
        return rows.keep(kept)


@dataclass(frozen=True)
class FlagFilter(BatchComponent):
    """Leaves draws out of the loss in which something went wrong, or that are too long.

    Their scores have voted: SimpleTIR, arXiv:2509.02479 (`flags="void"`), SPEAR arXiv:2509.22601, and overlong
    filtering of DAPO, arXiv:2503.14476 (`flags="truncated"`). Draws that must not vote get no score instead:
    `reward.Unscored`.

    Args:
        flags: comma-joined names of columns that are other than 0 where something is wrong, or of steps'
            `env.StepFlag`s in small letters; empty: none.
        level: of these columns: `draw` or `step`.
        shorter_than: draws with this many action tokens or more are not kept; None: however long.

    Raises:
        RecipeError: nothing is asked for, or a length is not above 0.

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
        """It filters by something."""
        self.require(bool(self.flags) or self.shorter_than is not None, "flags", "name columns, or give shorter_than")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `keep` on draws."""
        draws = Rows(batch, "draw")
        kept = np.ones(len(draws), dtype=np.bool_)
        if self.flags:
            kept &= ~Rows(batch, self.level).flagged(self.flags)
        if self.shorter_than is not None:
            lengths = np.diff(batch.offsets("token")[batch.offsets("step")])
            kept &= lengths < self.shorter_than
        return draws.keep(kept)
