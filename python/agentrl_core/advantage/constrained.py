"""Several rewards, of which one is to rise while the others do not fall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from agentrl_core.advantage.normalisation import Normalisation
from agentrl_core.component.component import Column, StatefulComponent
from agentrl_core.component.rows import Rows, key_columns, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class ConstrainedSum(StatefulComponent):
    """advantage = A_1 + sum_k w_k A_k: the first column rises, the others are held where they were at the start.

    A_k is column k, compared with its group. With m_k its mean over the batch, c_k = m_k - slack * |m_k| in the first
    batch that has any, each weight follows

        w_k <- clip(w_k + rate * (c_k - m_k), 0, most)

    (dual ascent). A batch is weighed as those before it made the weights. A column that is unknown (NaN) for a draw
    adds nothing to it. Source: C-MORL, arXiv:2410.02236.

    Args:
        columns: comma-joined draw columns, the one that is to rise first.
        slack: how far, in parts of its mean, a column may fall; at least 0.
        rate: at least 0.
        initial: weight of the first batch, 0 to `most`.
        most: the largest weight, at least 0.
        normalisation: how values are compared.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import ConstrainedSum
        >>> ConstrainedSum(columns="reward.answer,reward.format").initial_state()
        {'floors': {}, 'weights': {}}
    """

    phase: ClassVar[str] = "advantage"

    columns: str
    slack: float = 0.1
    rate: float = 0.1
    initial: float = 0.0
    most: float = 10.0
    normalisation: Normalisation = Normalisation()

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(len(key_columns(self.columns)) > 1, "columns", "name two columns or more")
        for option in ("slack", "rate", "most"):
            self.require(getattr(self, option) >= 0.0, option, "give a number of at least 0")
        self.require(0.0 <= self.initial <= self.most, "initial", f"give a number from 0 to most={self.most}")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The rewards, whose draws count, and their groups."""
        return needed("draw", "score", "group_id", *key_columns(self.columns))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)

    def initial_state(self) -> dict[str, Any]:
        """Neither floors nor weights."""
        return {"floors": {}, "weights": {}}

    def advance(self, batch: Batch, state: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Return `batch` with the column `advantage` on draws, and the weights for the next batch."""
        rows = Rows(batch, "draw")
        groups, everywhere = rows.keys("group_id"), rows.keys("batch")
        first, *others = key_columns(self.columns)
        made = self.normalisation.compare(rows.values(first), groups, valid=rows.valid)
        floors, weights = dict(state["floors"]), dict(state["weights"])
        for name in others:
            values = rows.values(name)
            weight = weights.get(name, self.initial)
            made = made + weight * self.normalisation.compare(values, groups, valid=rows.valid)
            known = rows.valid & np.isfinite(values)
            if known.any():
                mean = float(group.statistics(values, everywhere, valid=known).mean[0])
                floor = floors.setdefault(name, mean - self.slack * abs(mean))
                weights[name] = min(max(weight + self.rate * (floor - mean), 0.0), self.most)
        return rows.write(advantage=np.where(rows.valid, made, 0.0)), {"floors": floors, "weights": weights}
