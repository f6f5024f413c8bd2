"""At which temperature what was sampled is told and trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, token

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class UnitTemperature(BatchComponent):
    """What was sampled at another temperature is told, and trained, at temperature 1.

    Sources: AEPO, arXiv:2510.08141; OTR, arXiv:2509.26313. It stands in phase reward, so that what models say of the
    tokens afterwards is said at temperature 1 as well.

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
