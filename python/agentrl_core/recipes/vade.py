"""VADE: select the most informative tasks, by a posterior whose evidence decays at two rates (arXiv:2511.18902).

The posterior of a task's success rate is Beta(S + 1, F + 1). Its S successes and F failures decay: by 0.5 at a visit,
before the new outcomes are added, and by 0.99 in every other iteration. So the posterior of an idle task returns to the
uniform prior. Each iteration samples one p from each posterior and takes the tasks with the largest p (1 - p)^2, which
prefers hard tasks (its maximum is at p = 1/3). Then GRPO.

The paper does not give the two decays; these are chosen here. It scores every task of the pool.

Equations:
    Read: the abstract, and notes of others; the paper's text was not read.

    - N1, posterior: `Beta`, with a uniform prior of one success and one failure.
    - N2, choice: `LearningSignal` and `TopSampler(posterior=True)`.
    - N3, update with decay: `Beta(decay=0.5, idle_decay=0.99)`.
    - N4, training: `GroupRelative` and `Policy`.

Differs:
    - Decays: no source that was read states them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.select import Beta, ComposedSelector, TaskScore, TopSampler


@dataclass(frozen=True)
class LearningSignal(TaskScore):
    """Score tasks by the learning signal of their success rate p: p (1 - p)^2, largest at p = 1/3.

    Source: VADE arXiv:2511.18902, Knapsack RL arXiv:2509.25849.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.recipes.vade import LearningSignal
        >>> LearningSignal()(np.array([0.0, 0.5, 1.0])).tolist()
        [0.0, 0.125, 0.0]
    """

    def __call__(self, estimates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the learning signal of each success rate."""
        return estimates * (1 - estimates) ** 2


VADE = Recipe(
    name="vade",
    source="arXiv:2511.18902",
    select=ComposedSelector(
        track=Beta(decay=0.5, idle_decay=0.99), score=LearningSignal(), sample=TopSampler(posterior=True)
    ),
    advantage=GroupRelative(),
    loss=Policy(),
)
