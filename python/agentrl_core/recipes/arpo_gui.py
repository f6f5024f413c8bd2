"""ARPO-GUI: if all rollouts of a task fail, add an earlier success of the task to the group (arXiv:2505.16282).

Before training, 16 rollouts of the first model measure each task, and those that it never solves leave the pool.

For long tasks on a screen whose outcome e is a fraction and whose format f is 0 or -1. The score is e + f / 2. A group
with std(e) < 0.05 and mean(e) < 0.2 has failed: its first member gives way to one of the task's last 8 rollouts with
e > 0.1, each equally likely; what this iteration rolls out is remembered afterwards. Then

    A_i = (R_i - mean) / std over the group with the stored one in it,

and PPO's clipped loss with [0.8, 1.3] and a dual bound of 3. The log-probs of the whole batch, stored rows included,
are recomputed with the policy before the update, so that their ratios begin at 1: stored rows count as on-policy.
Source: arXiv:2505.16282; code dvlab-research/ARPO. `ARPO_GUI.replace(replay=...)` with `old_logprob="behaviour"`
corrects for the policy that sampled. The environment reports `reward.format`.

Equations:
    Read: the public code and notes.

    - C1, failed group: `GroupFailed(mean_below=0.2, std_below=0.05)`.
    - C2, replacement: `Inject(replaces="first")`.
    - C3, storage: `Memory(per_task=8, where=Where(column="reward", above=0.1))`.
    - C4, reward: `CombineReward(column="reward.format", coefficient=0.5)`.
    - C5, advantage: `GroupRelative`; a group of one is 0 here, and its reward in verl (`singleton="raw"`).
    - C6, loss: `Policy`, clip ranges 0.2 and 0.3, dual clip 3, mean over tokens.
    - C7, ratio of the replayed member: `old_logprob="recomputed"`.
    - N1, selection of tasks: `PoolFilter(above=0.0, attempts=16)` after `Survey(rollouts=16)`; not computed: it reads a
      pool, as in the recipe's own test.

Needs: the reward's component `format`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Where
from agentrl_core.loss import Clip, Policy
from agentrl_core.replay import GroupFailed, Inject, Memory
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.select import ComposedSelector, PoolFilter, Survey

ARPO_GUI = Recipe(
    name="arpo_gui",
    source="arXiv:2505.16282",
    select=ComposedSelector(pool=PoolFilter(above=0.0, attempts=16), survey=Survey(rollouts=16)),
    reward=(OutcomeScore(), CombineReward(column="reward.format", coefficient=0.5)),
    replay=Inject(
        Memory(per_task=8, where=Where(column="reward", above=0.1)),
        GroupFailed("reward", best_at_most=None, mean_below=0.2, std_below=0.05),
        replaces="first",
        old_logprob="recomputed",
    ),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.3, dual=3.0)),
    old_logprob="recomputed",
    minibatches=16,
)
