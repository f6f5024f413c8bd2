"""A reward for what was not seen before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, key_columns, needed
from agentrl_core.operators import keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class FirstVisits(BatchComponent):
    """reward of a step += weight where it is the first of its draw in which the key occurs: what it adds to F.

    F is the number of different keys that a trajectory has visited, a coverage function: a step adds F after it less F
    before it, to nothing where it had no reward. Source: submodular reinforcement learning, arXiv:2307.13372.

    Args:
        key: comma-joined step columns: what is covered, such as states, tools or documents.
        weight: of a first visit.

    Raises:
        RecipeError: `key` is empty.

    Example:
        >>> from agentrl_core.reward import FirstVisits
        >>> FirstVisits(weight=0.1).makes
        (('step', 'reward'),)
    """

    phase: ClassVar[str] = "reward"

    key: str = "state_key"
    weight: float = 1.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(bool(key_columns(self.key)), "key", "name key columns")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Rewards, and what is visited."""
        return needed("step", "reward", *key_columns(self.key))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The reward of steps again."""
        return (("step", "reward"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `reward` on steps."""
        rows = Rows(batch, "step")
        visited = keys.composite(rows.draws, rows.keys(self.key))
        first = np.zeros(len(rows), dtype=np.bool_)
        first[np.unique(visited, return_index=True)[1]] = True
        reward = rows.values("reward")
        return rows.write(reward=np.where(first, np.nan_to_num(reward, nan=0.0) + self.weight, reward))
