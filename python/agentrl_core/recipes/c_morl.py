"""C-MORL: raise one of several rewards, and keep the other rewards above a floor (arXiv:2410.02236).

The environment provides the reward columns: `ConstrainedSum(columns="reward.answer,reward.format")` raises the first.
For weights that are fixed or follow a schedule, use one link per reward instead:
`(GroupRelative(column="reward.answer", add=True), GroupRelative(column="reward.format", coefficient=0.5, add=True))`.

This recipe is one run of the second stage, which extends a policy in one objective. Two parts are left out. One is
the Pareto set of policies that the first stage trains, and the choice among them, since a run has one policy. The
other is the log barrier of the code: it multiplies the ratio of an action by the mean return, so the action's own
rewards do not enter. Dual ascent, as in the notes, replaces the barrier and holds the other objectives.

Equations:
    Read: the authors' code and README, and notes of others; the paper's text was not read.

    - C1, initialisation: left out: it needs one run for each vector of weights, with the links above.
    - C2, Pareto set: left out: it compares policies of many runs.
    - C3, crowding distance: left out: for the same reason.
    - C4, choice: left out: for the same reason.
    - C5, extension: `ConstrainedSum(slack=0.1)`: raise the first objective, keep the others above 0.9 of their value
      at the start.
    - C6, loss of the extension: the policy's part is `Policy`, clip range 0.2, 10 epochs of 32 steps; the barrier is
      left out: see above.

Differs:
    - Constraint: a log barrier with t = 20 in the code, weights by dual ascent here (our choice: step size 0.1,
      weight at most 10).
    - Threshold: 0.9 times the value in the code, which is larger than the value if this is negative; here the value
      minus 0.1 of its size. The code takes the value of each mini-batch, so its threshold follows the policy; here
      the value is that of the first batch.
    - Advantages: in the code, from a critic with a value for each objective, normalised over the batch; here compared
      within the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import Normalisation
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
from agentrl_core.loss import Policy

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class ConstrainedSum(StatefulComponent):
    """Raise one reward, and hold the other rewards above floors that follow from their values at the start.

        advantage = A_1 + sum_k w_k A_k

    A_k is column k, compared with its group. With m_k its mean over the batch, and c_k = m_k - slack * |m_k| in the
    first batch that has any values, each weight follows

        w_k <- clip(w_k + step_size * (c_k - m_k), 0, at_most)

    (dual ascent). A batch uses the weights computed from earlier batches. If a column is unknown (NaN) for a draw, it
    adds nothing to the advantage of that draw.

    Args:
        columns: comma-joined draw columns; the first one is raised.
        slack: how far a column may fall, as a share of its mean; at least 0.
        step_size: step size of the ascent, at least 0.
        initial: weight of the first batch, 0 to `at_most`.
        at_most: the largest weight, at least 0.
        normalisation: how values are compared.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.c_morl import ConstrainedSum
        >>> ConstrainedSum(columns="reward.answer,reward.format").initial_state()
        {'floors': {}, 'weights': {}}
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    columns: str = column_name(level="draw")
    slack: float = option(0.1, at_least=0)
    step_size: float = option(0.1, at_least=0)
    initial: float = option(0.0, at_least=0)
    at_most: float = option(10.0, at_least=0)
    normalisation: Normalisation = Normalisation()

    def check_options(self) -> None:
        """Require two columns or more, and an initial weight of at most `at_most`."""
        self.require(len(key_columns(self.columns)) > 1, "columns", "name two columns or more")
        self.require(self.initial <= self.at_most, "initial", f"give a number from 0 to at_most={self.at_most}")

    def initial_state(self) -> dict[str, Any]:
        """Return a state without floors and weights."""
        return {"floors": {}, "weights": {}}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        groups = rows.keys("group_id")
        first, *others = key_columns(self.columns)
        advantages = self.normalisation.compare(rows.values(first), groups, valid=rows.valid)
        for name in others:
            compared = self.normalisation.compare(rows.values(name), groups, valid=rows.valid)
            advantages = advantages + state["weights"].get(name, self.initial) * compared
        return rows.write(advantage=np.where(rows.valid, advantages, 0.0))

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        """Return the floors, and the weights moved by step_size (floor - mean of the reward)."""
        rows = Rows(closed.batch, "draw")
        floors, weights = dict(state["floors"]), dict(state["weights"])
        for name in key_columns(self.columns)[1:]:
            values = rows.values(name)
            known = rows.valid & np.isfinite(values)
            if known.any():
                mean = float(group.statistics(values, rows.keys("batch"), valid=known).mean[0])
                floor = floors.setdefault(name, mean - self.slack * abs(mean))
                weight = weights.get(name, self.initial) + self.step_size * (floor - mean)
                weights[name] = min(max(weight, 0.0), self.at_most)
        return {"floors": floors, "weights": weights}


C_MORL = Recipe(
    name="c_morl",
    source="arXiv:2410.02236",
    advantage=ConstrainedSum(columns="reward.answer,reward.format"),
    loss=Policy(),
    epochs=10,
    minibatches=32,
)
