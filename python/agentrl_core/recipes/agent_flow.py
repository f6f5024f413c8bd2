"""AgentFlow (Flow-GRPO): train every turn of an agent on the single outcome of its trajectory (arXiv:2510.05592).

    A_i = (R_i - mean R) / std R over the group, for all tokens of all turns
    L = mean_i mean_turns mean_tokens [ - min(r A, clip(r, 0.8, 1.3) A) + 0.001 k3(p, p_ref) ]

The public code takes mean and std over turns, so that longer trajectories weigh more:
`advantage.GroupRelative(voter="step")`. It drops turns with too long prompts only after they have voted.

Needs: the model reference.

Equations:
    Read: the paper's sections 3.2 and 4.1 and the public code.

    - 4, reward: the environment's, one outcome for all turns.
    - 5, objective: `Policy(aggregate="turn_mean", kl=KL(0.001))`.
    - 6, ratio: `Policy`, per token, with each turn under its own prompt.
    - 7, advantage: `GroupRelative`, std of n - 1.
    - C1, advantage in the code: an option, `GroupRelative(voter="step", singleton="raw")`.
    - C2, rows in the code: left out: the code cuts the rows to a multiple of the mini-batch for its devices; here no
      row is dropped.
    - C3, no reward: left out: it counts as 0 in the code; here a rollout without a score neither votes nor is trained.

Differs:
    - Clip range: one number in the paper; 0.2 and 0.3 in the configuration, and here.
    - Aggregation: the code takes one mean over the tokens of a mini-batch; the paper and this recipe average three
      times.
    - Optimizer steps: not in the paper. The configuration has mini-batches of 8 of 32 questions, of which the trainer
      makes mini-batches of 64 rows, so episodes with more turns lead to more steps; here there are 4 steps, on whole
      trajectories.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Clip, Policy

AGENT_FLOW = Recipe(
    name="agent_flow",
    source="arXiv:2510.05592",
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.3), kl=KL(0.001), aggregate="turn_mean"),
    minibatches=4,
)
