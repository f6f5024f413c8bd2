"""RECAP: sum several rewards into one score, with more weight for rewards that stop rising or fluctuate.

Training one ability can degrade others. So the mean of each objective is tracked over short windows, to shift weight
away from saturated objectives. Of the newest 2 `window` means of an objective, including the mean of the batch, O is
the older half and N the newer half:

    convergence c = sum O / sum N          below 1: the reward rises; above 1: it falls; 1 with fewer means
    instability i = sigma / (mean N + mean O)                            0 with fewer means
    sigma^2 = sum over O and N of (x - mean N)^2 / (their number - 1)
    w = K softmax((c + i) / temperature),  score = sum_k w_k x_k

So all weights are 1 in the first 19 iterations. Then GRPO follows, with eps 1e-4. The public code is
`BalancedSum(kind="mixture")`: it compares halves as soon as there are two means, and has i = std / mean of O and N
together and w = K [mix softmax(c / temperature) + (1 - mix) softmax(i / temperature)].
`mix=Schedule(1.0, 0.0, iterations=500)` moves the weights from convergence to instability. For supervised objectives
on replayed data use `loss.Sum(Policy(), Imitation("token_mean", tokens="expert"))` with weights of your choice; this
recipe has only the part that learns from rewards.

Equations:
    Read: the paper's sections 3 to 6, its appendix A and the public code.

    - P1, convergence rate: c in `BalancedSum`, windows of 10.
    - P2, instability: i in `BalancedSum`.
    - 1, priority: w in `BalancedSum`, temperature 5.
    - A1, first steps: c = 1 and i = 0 in `BalancedSum`, so that weights are equal.
    - P3, training objective: the score is K times this objective; a surrogate is linear in the reward.
    - C1, rates of the code: c in `BalancedSum(kind="mixture")`, for a batch of rollouts.
    - C2, instability of the code: i in `BalancedSum(kind="mixture")`.
    - C3, weights of the code: `BalancedSum(kind="mixture")`; `mix=Schedule(1.0, 0.0, iterations=500)` anneals `mix`.
    - C4, reward and advantage: `BalancedSum` and `GroupRelative(eps=1e-4)`.
    - C5, supervised loss: left out: only rewards are balanced; the coefficient of a supervised loss is fixed.

Differs:
    - Objectives that do not apply: the code reads this from the first row of a batch; here from each draw.
    - Missing rewards: in the code they make the whole history undefined; here they do not vote.
    - Instability: deviations are from the mean of N in the text, in Algorithm 1 and here; from the mean of O and N in
      Algorithm 2.

Source: arXiv:2510.21978. Needs: the rewards `reward.answer` and `reward.format`, each with a mean of at least 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import (
    Column,
    IterationRecord,
    Rows,
    StatefulComponent,
    column_name,
    draw,
    key_columns,
    option,
)
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Policy

if TYPE_CHECKING:
    from agentrl_core import Batch

_EPS = 1e-15


@dataclass(frozen=True)
class BalancedSum(StatefulComponent):
    """Sum rewards, each with a weight computed from its means so far, including the mean of the batch.

    The formula is in the docstring of the module. A column that is unknown (NaN) for a draw does not apply to it: it
    adds nothing, and the draw does not vote in its mean. A draw to which no column applies has no score.

    Args:
        columns: comma-joined draw columns, such as `reward.answer,reward.format`; their means must be at least 0.
        kind: `sum` as in the formula, or `mixture`, which also compares shorter halves.
        window: number of means in each half of a comparison.
        temperature: larger values make the weights more equal.
        mix: for `mixture`: weight of the convergence.

    Raises:
        RecipeError: an option is out of range.
        InvalidInputError: the mean of a column is below 0.

    Example:
        >>> from agentrl_core.recipes.recap import BalancedSum
        >>> BalancedSum(columns="reward.answer,reward.format").needs
        (draw('reward.answer'), draw('reward.format'))
    """

    phase: ClassVar[str] = "reward"
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    columns: str = column_name(level="draw")
    kind: Literal["sum", "mixture"] = "sum"
    window: int = option(10, at_least=1)
    temperature: float = option(5.0, above=0)
    mix: float = option(0.5, at_least=0, at_most=1)

    def initial_state(self) -> dict[str, Any]:
        """Return a state without means."""
        return {"means": {}}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws, from the means of earlier iterations and of this batch."""
        means = self._newest(state, batch)
        rows, names = Rows(batch, "draw"), key_columns(self.columns)
        values = np.stack([rows.values(name) for name in names])
        applies = np.isfinite(values)
        weights = self.weights([means.get(name, []) for name in names])
        totals = (weights[:, None] * np.where(applies, values, 0.0)).sum(axis=0)
        return rows.write(score=np.where(applies.any(axis=0), totals, np.nan))

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        """Return the state with the means of the closed batch added; means that no window reads are removed."""
        return {"means": self._newest(state, closed.batch)}

    def _newest(self, state: dict[str, Any], batch: Batch) -> dict[str, list[float]]:
        """Return the means of the state, followed by the means of a batch."""
        means = dict(state["means"])
        for name, mean in self._means(batch).items():
            means[name] = [*means.get(name, []), mean][-2 * self.window :]
        return means

    def _means(self, batch: Batch) -> dict[str, float]:
        """Return the mean of each column that applies to at least one draw."""
        rows, means = Rows(batch, "draw"), {}
        for name in key_columns(self.columns):
            values = rows.values(name)
            if np.isfinite(values).any():
                means[name] = float(group.statistics(values, rows.keys("batch"), valid=np.isfinite(values)).mean[0])
                if means[name] < 0.0:
                    raise InvalidInputError(
                        f"the mean of column {name!r} is {means[name]}; add a constant to this column, so that the "
                        "mean is at least 0"
                    )
        return means

    def weights(self, means: list[list[float]]) -> NDArray[np.float64]:
        """Return the weight of each column, from its means, oldest first."""
        convergence, instability = np.ones(len(means)), np.zeros(len(means))
        for place, all_means in enumerate(means):
            half = min(len(all_means) // 2, self.window)
            if not half or (self.kind == "sum" and half < self.window):
                continue
            newest = np.array(all_means[-2 * half :])
            older, newer = newest[:half], newest[half:]
            convergence[place] = older.sum() / (newer.sum() + _EPS)
            if self.kind == "sum":
                sigma = np.sqrt(np.square(newest - newer.mean()).sum() / (len(newest) - 1))
                instability[place] = sigma / (newer.mean() + older.mean() + _EPS)
            else:
                instability[place] = newest.std() / (newest.mean() + _EPS)
        if self.kind == "sum":
            return len(means) * self._softmax(convergence + instability)
        shares = self.mix * self._softmax(convergence) + (1.0 - self.mix) * self._softmax(instability)
        return len(means) * shares

    def _softmax(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(group.softmax(values, np.zeros(len(values), np.uint32), temperature=self.temperature))


RECAP = Recipe(
    name="recap",
    source="arXiv:2510.21978",
    reward=BalancedSum(columns="reward.answer,reward.format"),
    advantage=GroupRelative(eps=1e-4),
    loss=Policy(),
)
