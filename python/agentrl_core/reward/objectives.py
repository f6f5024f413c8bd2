"""Several rewards in one score, weighted by how each of them goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import Column, StatefulComponent
from agentrl_core.component.rows import Rows, key_columns, needed
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_EPS = 1e-15


@dataclass(frozen=True)
class BalancedSum(StatefulComponent):
    """score = sum_k w_k x_k of the K columns, with more weight for those that no longer rise or that swing.

    The mean of each column is remembered from batch to batch. Of its newest means, an even number up to 2 * `window`,
    O is the older half and N the newer one:

        convergence c = sum O / sum N          below 1: the reward rises; above 1: it falls; 1 with fewer than two means
        instability i = std N / (mean N + mean O)                            0 with fewer than two means
        w = K softmax((c + i) / temperature)

    Source: RECAP, arXiv:2510.21978. Its public code has i = std / mean of O and N together and `rule="mixture"`: w =
    K [mix softmax(c / temperature) + (1 - mix) softmax(i / temperature)], with `mix=Schedule(1.0, 0.0, iterations=...)`
    where it moves from convergence to instability.

    A column that is unknown (NaN) for a draw does not apply to it: it adds nothing and the draw does not vote in its
    mean. A draw to which none applies has no score. The weights are those of the batches before; then this batch is
    remembered.

    Args:
        columns: comma-joined draw columns, such as `reward.answer,reward.format`; their means must be at least 0.
        rule: `sum` as above, or `mixture`.
        window: means of half a comparison, at least 1.
        temperature: above 0; the larger, the more equal the weights.
        mix: for `mixture`: weight of convergence, 0 to 1.

    Raises:
        RecipeError: an option is out of range.
        InvalidInputError: the mean of a column is below 0.

    Example:
        >>> from agentrl_core.reward import BalancedSum
        >>> BalancedSum(columns="reward.answer,reward.format").needs
        (('draw', 'reward.answer'), ('draw', 'reward.format'))
    """

    phase: ClassVar[str] = "reward"

    columns: str
    rule: Literal["sum", "mixture"] = "sum"
    window: int = 10
    temperature: float = 5.0
    mix: float = 0.5

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(bool(key_columns(self.columns)), "columns", "name columns")
        self.require(self.window >= 1, "window", "give a number of at least 1")
        self.require(self.temperature > 0.0, "temperature", "give a number above 0")
        self.require(0.0 <= self.mix <= 1.0, "mix", "give a number from 0 to 1")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The rewards."""
        return needed("draw", *key_columns(self.columns))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score of each draw."""
        return (("draw", "score"),)

    def initial_state(self) -> dict[str, Any]:
        """No means yet."""
        return {"means": {}}

    def advance(self, batch: Batch, state: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Return `batch` with the column `score` on draws, and the means with this batch's added."""
        rows, names = Rows(batch, "draw"), key_columns(self.columns)
        values = np.stack([rows.values(name) for name in names])
        applies = np.isfinite(values)
        weights = self.weights([state["means"].get(name, []) for name in names])
        total = (weights[:, None] * np.where(applies, values, 0.0)).sum(axis=0)
        means = dict(state["means"])
        everywhere = rows.keys("batch")
        for name, column, known in zip(names, values, applies, strict=True):
            found = group.statistics(column, everywhere, valid=known).mean if known.any() else np.zeros(0)
            if found.size and found[0] < 0.0:
                raise InvalidInputError(f"the mean of {name} is {found[0]}; add a constant, so that it is at least 0")
            means[name] = [*means.get(name, []), *found.tolist()][-2 * self.window :]
        return rows.write(score=np.where(applies.any(axis=0), total, np.nan)), {"means": means}

    def weights(self, means: list[list[float]]) -> NDArray[np.float64]:
        """The weight of each column, from its means of the batches before, oldest first."""
        convergence, instability = np.ones(len(means)), np.zeros(len(means))
        for place, all_means in enumerate(means):
            half = min(len(all_means) // 2, self.window)
            if not half:
                continue
            newest = np.array(all_means[-2 * half :])
            older, newer = newest[:half], newest[half:]
            convergence[place] = older.sum() / (newer.sum() + _EPS)
            instability[place] = (
                newer.std() / (newer.mean() + older.mean() + _EPS)
                if self.rule == "sum"
                else newest.std() / (newest.mean() + _EPS)
            )
        if self.rule == "sum":
            return len(means) * self._softmax(convergence + instability)
        shares = self.mix * self._softmax(convergence) + (1.0 - self.mix) * self._softmax(instability)
        return len(means) * shares

    def _softmax(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(group.softmax(values, np.zeros(len(values), np.uint32), temperature=self.temperature))
