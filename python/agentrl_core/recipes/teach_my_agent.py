"""TeachMyAgent: select tasks whose mean reward is changing, up or down (arXiv:2103.09815).

The benchmark's tasks are points of a parameter space, and its teacher ALP-GMM fits mixtures of Gaussians to points and
their progress. The Gaussians are left out: here each task of the pool has its own progress. The absolute learning
progress (ALP) of a task is |r_new - r_old| of the mean rewards of its last two visits, and

    P(task) = 0.2 / N + 0.8 ALP / sum ALP,

so that the policy practises tasks that it is learning or forgetting, and every task now and then. Tasks are drawn
without replacement, so P is the probability of the first draw. The update is GRPO. `LearningProgress(rate=)` smooths
the progress.

Equations:
    Read: the code and its documentation.

    - C1, absolute learning progress: `LearningProgress`; the nearest earlier task is the same task at its last visit.
      Its first visit has progress 0; the benchmark compares it with the nearest other task.
    - C2, fit: left out: no task is chosen by its position in a parameter space.
    - C3, choice of a Gaussian: `ProportionalSampler(uniform=0.2)`, of a task in place of a Gaussian.
    - C4, progress of Covar-GMM: left out: another teacher of the benchmark, also on points.
    - C5, progress of a region in RIAC: left out: another teacher of the benchmark, on regions.
    - C6, split score of RIAC: left out: it splits regions.

Differs:
    - Student: SAC or PPO in the benchmark, GRPO here.
    - Return of a task: the return of one episode in the benchmark, the mean of a group here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Policy
from agentrl_core.select import Candidates, ComposedSelector, ProportionalSampler, TaskScore, Tracker

if TYPE_CHECKING:
    from agentrl_core.component import State
    from agentrl_core.select import TaskOutcomes


@dataclass(frozen=True)
class Linear(TaskScore):
    """Score a task by its tracked number times a factor; -1 prefers small numbers.

    Source: VLA-RL arXiv:2505.18719 (success rates with -1), TeachMyAgent arXiv:2103.09815 (learning progress).

    Args:
        factor: factor of the tracked number.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.recipes.teach_my_agent import Linear
        >>> Linear(-1.0)(np.array([0.25])).tolist()
        [-0.25]
    """

    factor: float = 1.0

    def __call__(self, estimates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the tracked numbers times the factor."""
        return self.factor * estimates


@dataclass(frozen=True)
class LearningProgress(Tracker):
    """Track how much the mean reward of each task changes: the absolute size of its last changes, smoothed.

    ALP <- (1 - rate) ALP + rate |r - r_last| at every visit but the first, which sets ALP to 0. With `from_zero`,
    r_last is 0 before the first visit, so that the first visit counts too.

    Source: absolute learning progress as in TeachMyAgent, arXiv:2103.09815.

    Args:
        rate: rate of the smoothing; 1: only the last change counts.
        from_zero: whether the first return counts as a change from 0.
        unseen: progress of a task without visits.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.teach_my_agent import LearningProgress
        >>> LearningProgress(rate=0.5).column
        'progress'
    """

    column: ClassVar[str] = "progress"

    rate: float = option(1.0, above=0, at_most=1)
    from_zero: bool = False
    unseen: float = option(0.0, at_least=0)

    def initial_state(self) -> State:
        """Return the state without any returns."""
        return {"last": np.zeros(0), "progress": np.zeros(0), "count": np.zeros(0, np.int64)}

    def next(self, state: State, visits: TaskOutcomes) -> State:
        """Return the state after an iteration."""
        visits = visits.subset(~np.isnan(visits.rewards))
        last, progress, count = (visits.extended(state[name]) for name in ("last", "progress", "count"))
        places, returns = visits.places, visits.sums(visits.rewards) / np.maximum(visits.counts, 1)
        has_previous = (count[places] > 0) | self.from_zero
        change = np.abs(returns - last[places])
        progress[places] = np.where(has_previous, (1 - self.rate) * progress[places] + self.rate * change, 0.0)
        last[places] = returns
        count[places] += 1
        return {"last": last, "progress": progress, "count": count}

    def estimate(self, state: State, candidates: Candidates) -> NDArray[np.float64]:
        """Return the absolute learning progress of each task; `unseen` before its first visit."""
        visited = candidates.read(state["count"], 0) > 0
        return np.where(visited, candidates.read(state["progress"], self.unseen), self.unseen)


TEACH_MY_AGENT = Recipe(
    name="teach_my_agent",
    source="arXiv:2103.09815",
    select=ComposedSelector(track=LearningProgress(), score=Linear(), sample=ProportionalSampler(uniform=0.2)),
    advantage=GroupRelative(),
    loss=Policy(),
)
