"""Mark expert tokens, which were not sampled in their context: a teacher's text, a solution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, token

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class ExpertMask(BatchComponent):
    """Mark tokens that were not sampled: token column `expert` is 1 if a token has no behaviour log-prob.

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
