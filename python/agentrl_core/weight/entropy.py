"""Factors from the policy's entropy during rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, column_name, option
from agentrl_core.component.column import Level, needed
from agentrl_core.component.rows import mean_of_tokens
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class EntropyScaled(BatchComponent):
    """Scale weights of tokens, steps or draws by how far their entropy is from the mean of their group or batch.

    weight *= max(1 + coefficient * x, at_least). The entropy of a step or draw is the mean over its trained tokens.
    With H this entropy, x is

    - `standard_score`: (H - mean) / std, std with n - 1, or 1 if it is 0 (AEPO, arXiv:2510.14545);
    - `relative`: (mean - H) / mean, or 0 if the mean is 0 (ETTRL, arXiv:2508.11356: `level="draw",
      group_by="group_id", coefficient=1.0, at_least=None`).

    If `at_least` is None, a weight may be negative and flip the sign of the advantage. Rows without a known entropy
    have factor 1.

    Args:
        column: token column of the rollout's entropies in nats.
        level: level of the compared rows.
        kind: definition of x.
        group_by: key columns of the groups to compare within; `batch`: all rows.
        coefficient: strength of the factor; a negative number reverses its direction.
        at_least: the smallest factor; None: none.

    Raises:
        RecipeError: no entropy is known.

    Example:
        >>> from agentrl_core.weight import EntropyScaled
        >>> EntropyScaled(level="draw", kind="relative", group_by="group_id").needs
        (token('entropy'), draw('group_id'))
    """

    phase: ClassVar[str] = "weight"

    column: str = column_name("entropy", level="token")
    level: Level = "token"
    kind: Literal["standard_score", "relative"] = "standard_score"
    group_by: str = column_name("batch", level="draw")
    coefficient: float = option(0.2)
    at_least: float | None = option(0.0)

    def own_makes(self) -> tuple[Column, ...]:
        """Return the output column: `weight` at `level`."""
        return needed(self.level, "weight")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, self.level)
        if self.level == "token":
            known = rows.known(self.column)
            entropies = np.where(known, rows.values(self.column), 0.0)
        else:
            entropies, known = mean_of_tokens(batch, self.column, self.level)
        groups = rows.keys(self.group_by)
        if self.kind == "standard_score":
            scores = np.asarray(group.normalise(entropies, groups, eps=0.0, valid=known))
        else:
            means = np.nan_to_num(group.statistics(entropies, groups, valid=known).mean[groups], nan=0.0)
            counted = known & (means != 0.0)
            scores = np.where(counted, (means - entropies) / np.where(counted, means, 1.0), 0.0)
        factors = 1.0 + self.coefficient * scores
        return rows.scale(factors if self.at_least is None else np.maximum(factors, self.at_least))
