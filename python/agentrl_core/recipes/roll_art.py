"""RollArt: run each environment independently, over-provision groups, and stop those that are too old.

RollArt: Scaling Agentic RL Training via Disaggregated Infrastructure (arXiv:2512.22560).

    more groups run than are wanted: the batch is that of the first to end
    a trajectory that began before version v - alpha is stopped at version v, and drawn by nobody
    L = - mean of min(r A, clip(r, 0.8, 1.2) A),   A = (R - mean) / std of the group

Collect with `Collector(..., staleness=1, concurrency={...}, batch_policy=BatchPolicy(oversample=1.25, max_carryovers=1,
stragglers="drop"))`: places by environment, generating while the trainer steps, redundant groups, and the bound alpha =
1 (the paper's is not stated). Which device serves which task is the engine's: a table of engines by the name of the
agent. Redundancy prefers short
episodes: see what is `dropped` in the metrics.

Its loss is GRPO's: what the paper adds is how rollouts are collected.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy

ROLL_ART = Recipe(
    name="roll_art",
    source="arXiv:2512.22560",
    advantage=GroupRelative(),
    loss=Policy(),
)
