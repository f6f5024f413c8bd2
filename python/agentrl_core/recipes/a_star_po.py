"""A*-PO: regress on the optimal advantage, with one rollout per task (arXiv:2505.20686).

Before training, the reference policy answers each task 8 times: a survey in iteration 0. The survey's rewards give

    V*(x) = beta_1 ln mean_i exp(r_i / beta_1),    beta_1 = 0.5,

and then the policy minimises L = (beta_2 sum_t ln(pi / pi_ref) - (r - V*))^2 with beta_2 = 1e-3. Each task has one
rollout (use `collect(group_size=1)`), and each batch has two optimizer steps. Tasks that the reference never solved
leave the pool. Draws have V* as column `task_value_star`.

The rollouts of iteration 0 are selected before V* is known. Their V* is NaN, so they are not trained; call
`collect(tasks=1, group_size=1)` in that iteration.

Equations:
    Read: the public code and the abstract; the paper's text was not found.

    - C1, optimal value: `LogMeanExp`, from surveys of the reference only.
    - C2, loss: `Regression`, mean over draws, on `BaselineRelative(column="task_value_star")`.
    - C3, filter: `PoolFilter(above=0.0, attempts=8)`; not computed: it reads the task pool.
    - N1, target of the regression: the same as C2.

Differs:
    - Filter: an option that the script of the public code leaves off; on here. Without it:
      `ComposedSelector(track=LogMeanExp(), survey=Survey(rollouts=8))`.
    - beta_1 = 0, the plain mean in the code: left out, a large `temperature` approximates it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import BaselineRelative
from agentrl_core.component import option
from agentrl_core.loss import Regression
from agentrl_core.select import Candidates, ComposedSelector, PoolFilter, Survey, Tracker
from agentrl_core.weight import SelectDraws

if TYPE_CHECKING:
    from agentrl_core.component import State
    from agentrl_core.select import TaskOutcomes


@dataclass(frozen=True)
class LogMeanExp(Tracker):
    """Track the optimal value of each task from its rollouts: temperature ln mean exp(r / temperature).

    Source: A*-PO arXiv:2505.20686 (V* from 8 rollouts of the reference, started by a `Survey`; temperature 0.5).

    Args:
        temperature: above 0; a large one gives the mean, a small one the maximum.
        surveys: whether only rollouts of surveys count, for the value of the reference policy.
        unseen: value of a task without rollouts; None: NaN, which excludes its draws from the loss.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.a_star_po import LogMeanExp
        >>> LogMeanExp().column
        'value_star'
    """

    column: ClassVar[str] = "value_star"

    temperature: float = option(0.5, above=0)
    surveys: bool = True
    unseen: float | None = None

    def initial_state(self) -> State:
        """Return the state without any rollout."""
        return {"log_sum": np.zeros(0), "count": np.zeros(0, np.int64)}

    def next(self, state: State, visits: TaskOutcomes) -> State:
        """Return ln sum exp(r / temperature) and the rollout count of each task after an iteration."""
        visits = visits.subset(~np.isnan(visits.rewards) & (visits.survey | (not self.surveys)))
        log_sum, count = (visits.extended(state[name]) for name in ("log_sum", "count"))
        if len(visits):
            places = visits.places
            added = np.logaddexp.reduceat(visits.rewards / self.temperature, visits.offsets[:-1])
            before = np.where(count[places] > 0, log_sum[places], -np.inf)
            log_sum[places] = np.logaddexp(before, added)
            count[places] += visits.counts
        return {"log_sum": log_sum, "count": count}

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """Return the value of each task; NaN or `unseen` before its first counted rollout."""
        count = candidates.read(state["count"], 0)
        values = self.temperature * (candidates.read(state["log_sum"], 0.0) - np.log(np.maximum(count, 1)))
        return np.where(count > 0, values, np.nan if self.unseen is None else self.unseen)


A_STAR_PO = Recipe(
    name="a_star_po",
    source="arXiv:2505.20686",
    select=ComposedSelector(pool=PoolFilter(above=0.0, attempts=8), track=LogMeanExp(0.5), survey=Survey(rollouts=8)),
    advantage=BaselineRelative(kind="column", column="task_value_star"),
    weight=SelectDraws(),
    loss=Regression(beta=1e-3, reference="reference"),
    minibatches=2,
)
