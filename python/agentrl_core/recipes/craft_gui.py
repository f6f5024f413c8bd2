"""CRAFT-GUI: interface tasks from easy to hard, with rewards for format, action and argument (arXiv:2508.11360).

Stage s rolls out tasks whose reference is in bucket s or an earlier one: at most 3 steps, 4 to 8, more than 8 (column
`reference_steps` of the pool). A stage ends when more than 0.8 of the rollouts of its own bucket succeed; then 0.15 of
the groups are of earlier buckets, against forgetting. The reward is

    0.1 format + 0.4 [right type of action] + 0.5 [right argument],

which the environment reports as its components. Then GRPO.

The paper gives neither buckets nor weights nor the rule that ends a stage; these are proposals.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.select import ComposedSelector, Curriculum

CRAFT_GUI = Recipe(
    name="craft_gui",
    source="arXiv:2508.11360",
    select=ComposedSelector(stage=Curriculum("reference_steps", "3,8", above=0.8, earlier=0.15)),
    reward=(
        OutcomeScore(),
        CombineReward(column="reward.format", coefficient=0.1),
        CombineReward(column="reward.action", coefficient=0.4),
        CombineReward(column="reward.argument", coefficient=0.5),
    ),
    advantage=GroupRelative(),
    loss=Policy(),
)
