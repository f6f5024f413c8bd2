"""Values compared with those of their group: GRPO, RLOO, whitening, and what differs from them by an option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.advantage.normalisation import Normalisation, votes_of
from agentrl_core.component.component import BatchComponent, Column, Level
from agentrl_core.component.rows import Rows, Unit, key_columns, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class GroupRelative(Normalisation, BatchComponent):
    """advantage = weight * (x - centre) / spread of each draw, step or token, over its group.

    Rows of draws without a score neither vote nor get a value (0), and so do tokens that are not trained and rows
    whose value is not finite. The options of `Normalisation` say how a value is compared, those below with whom.
    Sources: GRPO arXiv:2402.03300 (the defaults); Dr. GRPO arXiv:2503.20783 (`scale="none"`); RLOO arXiv:2402.14740
    (`center="leave_one_out", scale="none"`); MC-GRPO arXiv:2601.22582 (`center="median", median="lower", scale="mad",
    eps=1e-3`); Lite PPO arXiv:2508.08221 (`scale_by="batch"`); Dr. MAS arXiv:2602.08847 (`level="step",
    group_by="group_id,agent"`); GDPO arXiv:2601.05242 (one link with `add=True` for each reward component);
    whitening over tokens (`column="advantage", group_by="batch", unit="token", eps=0.0, variance_eps=1e-8`).

    Args:
        column: what is compared: `score`, `reward.<name>`, an earlier `advantage`, or another column.
        level: of the rows: `draw`, `step` or `token`.
        group_by: comma-joined key columns whose values tell groups apart, such as `group_id,agent`; or `batch`: one
            group of all rows.
        scale_by: the same for the spread alone; empty: that of `group_by`.
        unit: what votes once: `row`, `step`, `trajectory`, `group` (the mean of its rows), or each trained `token` (a
            row counts as often as it has any). `step` on draws: a draw counts as often as it has steps.
        output: `row`: each row's own value is compared; `unit`: the mean of its unit is, and all its rows get that.
        weight: multiplies the result.
        add: whether it is added to the advantage that is there, at the finer of the two levels.
        shared: how draws that share the same row count it: `each`, `split` or `owner` (`Recipe.shared`).
        fallback_above: where a result of a group reaches this size, the whole group is compared with `unit="row"`
            instead (HAPO, arXiv:2509.16591: 5); None: nowhere.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import GroupRelative
        >>> GroupRelative(scale="none", group_by="group_id,agent").needs
        (('draw', 'score'), ('draw', 'group_id'), ('draw', 'agent'))
    """

    phase: ClassVar[str] = "advantage"

    column: str = "score"
    level: Level = "draw"
    group_by: str = "group_id"
    scale_by: str = ""
    unit: Unit = "row"
    output: Literal["row", "unit"] = "row"
    weight: float = 1.0
    add: bool = False
    shared: Literal["each", "split", "owner"] = "each"
    fallback_above: float | None = None

    def check_options(self) -> None:
        """Ranges as documented."""
        super().check_options()
        self.require(bool(self.group_by), "group_by", 'name key columns, or "batch"')
        self.require(
            not self.scale_by or self.scale in ("std", "mad", "range"), "scale_by", "choose scale std, mad or range"
        )
        self.require(
            self.output == "row" or self.unit in ("step", "trajectory", "group"),
            "output",
            'choose unit "step", "trajectory" or "group", whose rows share a value',
        )
        self.require(
            self.fallback_above is None or self.fallback_above > 0.0, "fallback_above", "give a number above 0, or None"
        )

    @property
    def needs(self) -> tuple[Column, ...]:
        """The values and the keys of their groups."""
        return needed(self.level, self.column, *key_columns(self.group_by), *key_columns(self.scale_by))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each row."""
        return ((self.level, "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on the rows of `level`."""
        rows = Rows(batch, self.level)
        values, groups = rows.values(self.column), rows.keys(self.group_by)
        units = rows.units(self.unit)
        if self.output == "unit" and units is not None:
            counted = rows.valid & np.isfinite(values)
            values = group.statistics(values, units, valid=counted).mean[units]
        made = self._compared(rows, values, groups, self.unit)
        if self.fallback_above is not None:
            most = group.statistics(np.abs(made), groups, valid=rows.valid).most
            far = (most >= self.fallback_above)[groups]
            made = np.where(far, self._compared(rows, values, groups, "row"), made)
        made = self.weight * made
        return rows.add("advantage", made) if self.add else rows.write(advantage=made)

    def _compared(
        self, rows: Rows, values: NDArray[np.float64], groups: NDArray[np.uint32], unit: Unit
    ) -> NDArray[np.float64]:
        scale_ids = rows.keys(self.scale_by) if self.scale_by else None
        votes = votes_of(rows, unit, self.shared)
        return self.compare(values, groups, valid=rows.valid, scale_ids=scale_ids, **votes)
