"""RollArt: run each environment independently, over-provision groups, and stop trajectories that are too old.

RollArt: Scaling Agentic RL Training via Disaggregated Infrastructure (arXiv:2512.22560).

    more groups run than the batch needs: the batch is the first groups that end
    a trajectory that began with version b is not trained after version b + alpha, alpha = 1
    L = - mean of min(r A, clip(r, 0.8, 1.2) A),   A = (R - mean) / std of the group

Collect with `Collector(..., staleness=1, concurrency={...}, batch_policy=BatchPolicy(oversample=1.25,
max_carryovers=0, stragglers="drop"))`. This sets a concurrency for each environment, generates while the trainer
steps, and starts redundant groups. The recipe bounds `staleness` by alpha; `max_carryovers` adds to it. The engine
decides which device serves which task: give a table of engines by the name of the agent. Redundancy favours short
episodes: check `dropped` in the metrics. The loss is GRPO's; the paper's contribution is how rollouts are collected.

Equations:
    Read: the public code, the abstract, and a note by a reader of the paper. The paper's text was not read.

    - N1, staleness of a trajectory: `LimitStaleness(1)`: a trajectory that would become too old does not start; with
      stragglers dropped, a trajectory that has not ended when its batch is cut is aborted.
    - C1, staleness of a group: `LimitStaleness(1)`, by iterations, whose groups start together.
    - C2, groups that are made: `LimitStaleness(1)`: two iterations start at first, then one.
    - C3, redundant rollouts: left out: here groups are redundant (`BatchPolicy(oversample=1.25)`); for redundancy
      within a group use the option `ROLL_ART.replace(rollout=rollout.EarlyStop())`.
    - N2, order of an iteration: `LimitStaleness(1)`: after an update, rollouts are one version older than the policy.
    - N3, GRPO: `GroupRelative`, std of n - 1.

Differs:
    - Staleness: the paper aborts a trajectory at the turn in which it becomes too old; here it does not start.
    - Clip ranges: the paper gives none; GRPO's here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.schedule import LimitStaleness

ROLL_ART = Recipe(
    name="roll_art",
    source="arXiv:2512.22560",
    advantage=GroupRelative(),
    loss=Policy(),
    hooks=LimitStaleness(1),
)
