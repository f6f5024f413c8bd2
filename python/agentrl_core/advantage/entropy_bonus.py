"""Exploration bonus from the policy's entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, column_name, option, token
from agentrl_core.component.column import LEVELS, needed
from agentrl_core.component.rows import level_of, mean_of_tokens

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class EntropyBonus(BatchComponent):
    """Add an entropy bonus to the advantage to encourage exploration, or subtract it.

    advantage + coefficient * H, at most `at_most` * |advantage| either way, with H the entropy in nats. The sign of an
    advantage never changes if `at_most` is below 1. Sources: MSSR, arXiv:2512.18215 (the defaults; its kappa is 1 /
    at_most); GTPO, arXiv:2508.03772 (`level="draw", coefficient=-0.1, at_most=None`); FunRL, arXiv:2508.05118
    (`within="thought"`: thoughts alone).

    Args:
        column: token column of the rollout's entropies; a draw has the mean over its trained tokens.
        level: `token` or `draw`.
        coefficient: bonus per nat.
        at_most: the largest change, in units of |advantage|; None: none.
        within: token column of spans: the bonus applies if it is not 0; empty: to all tokens.

    Raises:
        RecipeError: an option is out of range, or no entropy is known.

    Example:
        >>> from agentrl_core.advantage import EntropyBonus
        >>> EntropyBonus(level="draw", coefficient=-0.1, at_most=None).needs
        (token('entropy'), draw('advantage'))
    """

    phase: ClassVar[str] = "advantage"

    column: str = column_name("entropy", level="token")
    level: Literal["token", "draw"] = "token"
    coefficient: float = 0.4
    at_most: float | None = option(0.5, above=0.0)
    within: str = ""

    def check_options(self) -> None:
        """Require level `token` for spans."""
        self.require(not self.within or self.level == "token", "within", 'choose level="token", or leave within empty')

    def own_needs(self) -> tuple[Column, ...]:
        """Return the columns to read besides `column`: the advantage, and the spans if given."""
        spans = (token(self.within, model="spans"),) if self.within else ()
        return (*needed(self.level, "advantage"), *spans)

    def own_makes(self) -> tuple[Column, ...]:
        """Return the column that is overwritten: the advantage."""
        return needed(self.level, "advantage")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new `advantage`, at the finer of its present level and `level`."""
        rows = Rows(batch, max(self.level, level_of(batch, "advantage", self.level), key=LEVELS.index))
        if self.level == "token":
            known = rows.known(self.column)
            if self.within:
                known &= rows.flags(self.within)
            entropies = np.where(known, rows.values(self.column), 0.0)
        else:
            means, _ = mean_of_tokens(batch, self.column, "draw")
            entropies = means[rows.draws]
        advantages = rows.values("advantage")
        bonuses = self.coefficient * entropies
        if self.at_most is not None:
            most = self.at_most * np.abs(advantages)
            bonuses = np.clip(bonuses, -most, most)
        return rows.write(advantage=np.where(rows.valid, advantages + bonuses, 0.0))
