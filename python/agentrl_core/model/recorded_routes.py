"""The experts that an engine recorded for each token while it sampled, arranged for the tokens of packs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.table_codes import ROUTED_EXPERTS
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core._core import Plan
    from agentrl_core.data.batch import Batch
    from agentrl_core.model.pack import Pack


class RecordedRoutes:
    """Looks up the recorded experts (column `routed_experts`) of the tokens of packs.

    Args:
        batch: the batch.

    Raises:
        InvalidInputError: no node of the batch has the column.
    """

    def __init__(self, batch: Batch) -> None:
        if not batch.has(ROUTED_EXPERTS, "node_token"):
            raise InvalidInputError(
                f"replay_routes is True, but no rollout of the batch recorded {ROUTED_EXPERTS!r}; generate with "
                "engine.Transformers(model, routed_experts=True) or engine.Vllm(path, "
                "enable_return_routed_experts=True), or leave replay_routes out"
            )
        self._experts = batch.column(ROUTED_EXPERTS, "node_token")
        self._known = batch.column(f"{ROUTED_EXPERTS}.known", "node_token") != 0

    def of_pack(self, plan: Plan, index: int) -> NDArray[np.int16]:
        """Return the experts of the tokens of a pack, `int16[T, layers * k]`; -1 for a token without a record."""
        stored = plan.row_tokens(index)
        rows = np.take(self._experts, stored, axis=0).astype(np.int16)  # three times as fast as indexing by rows
        rows[~self._known[stored] | (stored < 0)] = -1
        return rows


def routed_rows(pack: Pack) -> Tensor | None:
    """Return whether each prediction pair's source token has recorded experts, `bool[N]`; None: no replay."""
    if pack.routed_experts is None:
        return None
    return (pack.routed_experts[:, 0] >= 0)[pack.source_row]
