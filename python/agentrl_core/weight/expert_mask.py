"""What nobody sampled in its place: a teacher's words, a solution, what was told behind another prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, token

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class ExpertMask(BatchComponent):
    """Marks what nobody sampled: token column `expert`, 1 where a token has no behaviour log-prob.

    Example:
        >>> from agentrl_core.weight import ExpertMask
        >>> ExpertMask().makes
        (token('expert'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("behaviour_logprob"),)
    makes: ClassVar[tuple[Column, ...]] = (token("expert"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `expert` on tokens."""
        rows = Rows(batch, "token")
        return rows.write(expert=(~np.isfinite(rows.values("behaviour_logprob"))).astype(np.float64))
