"""ARPO-GUI: if all rollouts of a task fail, add an earlier success of the task to the group (arXiv:2505.16282).

Before training, the first model rolls out each task 16 times, and tasks that it never solves are removed from the pool.

The recipe is for long tasks on a screen. Their outcome e is a fraction, and their format reward f is 0 or -1. The score
is e + f / 2. A group with std(e) < 0.05 and mean(e) < 0.2 has failed: one of the task's last 8 rollouts with e > 0.1,
each equally likely, replaces its first member. The rollouts of the current iteration are stored after that. Then

    A_i = (R_i - mean) / std over the group, including the stored rollout,

and the loss is PPO's clipped loss with [0.8, 1.3] and a dual clip of 3. The policy recomputes the log-probs of the
whole batch, including stored rows, before the update. All ratios therefore start at 1: stored rows count as on-policy.
Source: arXiv:2505.16282; code dvlab-research/ARPO. `ARPO_GUI.replace(replay=...)` with `old_logprob="behaviour"`
corrects for the policy that sampled the stored rows. The environment reports `reward.format`.

Equations:
    Read: the public code and notes.

    - C1, failed group: `GroupFailed(mean_below=0.2, std_below=0.05)`.
    - C2, replacement: `Inject(replaces="first")`.
    - C3, storage: `Memory(per_task=8, where=Where(column="reward", above=0.1))`.
    - C4, reward: `CombineReward(column="reward.format", coefficient=0.5)`.
    - C5, advantage: `GroupRelative`; the advantage of a group of one is 0 here, and its reward in verl
      (`singleton="raw"`).
    - C6, loss: `Policy`, clip ranges 0.2 and 0.3, dual clip 3, mean over tokens.
    - C7, ratio of the replayed member: `old_logprob="recomputed"`.
    - N1, selection of tasks: `PoolFilter(above=0.0, attempts=16)` after `Survey(rollouts=16)`; not computed: it reads a
      pool; the recipe's own test checks it.

Needs: the reward component `format`.
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
