"""TeachMyAgent: select tasks whose mean reward is changing, up or down (arXiv:2103.09815).

The absolute learning progress of a task is |r_new - r_old| of the mean rewards of its last two visits, and

    P(task) = 0.2 / N + 0.8 ALP / sum ALP,

so that what is learnt and what is forgotten is practised, and every task now and then. Tasks are drawn without
replacement, so P is the probability of the first draw. Then GRPO. `LearningProgress(rate=)` smooths the progress; the
benchmark's mixture of Gaussians over continuous task parameters is another teacher and not here.
"""

from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.select import ComposedSelector, LearningProgress, Linear, ProportionalSampler

TEACH_MY_AGENT = Recipe(
    name="teach_my_agent",
    source="arXiv:2103.09815",
    select=ComposedSelector(track=LearningProgress(), score=Linear(), sample=ProportionalSampler(uniform=0.2)),
    advantage=GroupRelative(),
    loss=Policy(),
)
