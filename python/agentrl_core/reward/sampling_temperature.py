"""The temperature at which sampled tokens are scored and trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, token

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class UnitTemperature(BatchComponent):
    """Score and train all tokens at temperature 1, whatever the sampling temperature was.

    Sources: AEPO, arXiv:2510.08141; OTR, arXiv:2509.26313. It belongs to phase reward, so that log-probs that models
    compute later also use temperature 1.

    Example:
        >>> from agentrl_core.reward import UnitTemperature
        >>> UnitTemperature().makes
        (token('inverse_temperature'),)
    """

    phase: ClassVar[str] = "reward"
    makes: ClassVar[tuple[Column, ...]] = (token("inverse_temperature"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `inverse_temperature`, 1 everywhere."""
        rows = Rows(batch, "token")
        return rows.write(inverse_temperature=np.ones(len(rows)))
