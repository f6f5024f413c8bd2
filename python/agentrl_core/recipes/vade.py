"""VADE: the tasks that promise the most information, by a posterior that forgets at two speeds (arXiv:2511.18902).

The posterior of a task's success rate is Beta(S + 1, F + 1), with S successes and F failures that fade: by 0.5 at a
visit, before its outcomes are added, and by 0.99 in every other iteration, so that old evidence regresses to the even
prior. An iteration takes the tasks with the largest p (1 - p)^2 of one draw p of each posterior, which leans to hard
tasks (most at p = 1/3). Then GRPO.

The paper does not give the two decays; these are chosen here. It scores every task of the pool.

Equations:
    Read: the abstract, and notes of others; the paper's text was not read.

    - N1, posterior: `Beta`, with an even prior of one success and one failure.
    - N2, choice: `LearningSignal` and `TopSampler(posterior=True)`.
    - N3, update with decay: `Beta(decay=0.5, idle_decay=0.99)`.
    - N4, training: `GroupRelative` and `Policy`.

Differs:
    - Decays: no text that was read has them.
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
    """Learning signal of a success rate p: p (1 - p)^2, largest at p = 1/3.

    Source: VADE arXiv:2511.18902, Knapsack RL arXiv:2509.25849.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.recipes.vade import LearningSignal
        >>> LearningSignal()(np.array([0.0, 0.5, 1.0])).tolist()
        [0.0, 0.125, 0.0]
    """

    def __call__(self, estimates: NDArray[np.float64]) -> NDArray[np.float64]:
        """The information of each."""
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
