"""MARFT: train several agents that act in turn, with credit that flows through all of their steps (arXiv:2504.16129).

Each agent of an episode has a trajectory. The steps of all agents form one chain, in the order of their moves:

    delta = r + 0.99 V_next - V,   A = delta + 0.99 * 0.95 A_next,   V_next the value of the next agent's step

The ratio is that of a whole action, clipped at 0.2, and all actions count equally. The entropy coefficient is 0.01.
The critic has a Huber loss (10) with clipped values. Advantages are whitened. An optimizer step of the policy is
skipped if its approximate KL is above 0.001. There are five epochs of four minibatches. This recipe has two agents,
`first` and `second`; give `SelfPlay` the agent names of your environment.

Equations:
    Read: the public code (its first version, and the credit rules and settings of a later one), the abstract, and
    notes by others. The paper's text was not read.

    - C1, GAE of actions: `Gae(level="agent", gamma=0.99, lam=0.95)`, by the step column `joint_move`.
    - C2, GAE of tokens: left out: `Gae(gamma=0.99, lam=0.95)` at level `token` chains the tokens of one agent only.
    - C3, return: column `return` of `Gae`.
    - C4, normalisation: the last `GroupRelative`, std with n; not computed: its example leaves out advantages of 0.
    - C5, policy loss: `Policy("step_mean", ratio=Ratio("step", "sum", "segment"), entropy=0.01)`.
    - C6, value loss: `Value(kind="huber", delta=10.0, clip=0.2)`.
    - C7, early stop: `SkipStep(when=Above("approximate_kl", 1e-3))`; not computed: it is a hook between optimizer
      steps.
    - C8, agent by agent: left out: the code's default is 0, all agents; `Train(..., where=Where(agent=0))` trains one.
    - C9, credit of a team's reward: left out: the environment gives each step its reward.

Differs:
    - Normalisation: over each minibatch in the code, over the batch here. The code leaves out advantages of exactly
      0, which represent agents that did not move; here such agents have no row.
    - Early stop: by the mean over actions of exp(d) - 1 - d in the code, with d the log-ratio; here by the mean over
      tokens of exp(-d) - 1 + d, and only single steps are skipped.
    - Huber loss: in the code, errors below -10 have no cost; here both signs have the same cost.
    - Flex-MG, dependencies of agents that change in time: left out: the environment sets the order of moves.

Needs: rewards of steps; the model `critic`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.loss import Policy, Ratio, Train, Value
from agentrl_core.rollout import SelfPlay
from agentrl_core.schedule import Above, SkipStep

MARFT = Recipe(
    name="marft",
    source="arXiv:2504.16129",
    rollout=SelfPlay(agents=("first", "second")),
    advantage=(
        Gae(level="agent", gamma=0.99, lam=0.95, column="reward", outcome=""),
        GroupRelative(column="advantage", level="step", group_by="batch", ddof=0, eps=1e-8),
    ),
    loss=(
        Train(Policy("step_mean", ratio=Ratio("step", "sum", "segment"), entropy=0.01), epochs=5, minibatches=4),
        Train(
            Value("step_mean", kind="huber", delta=10.0, clip=0.2, level="step"),
            model="critic",
            epochs=5,
            minibatches=4,
        ),
    ),
    hooks=SkipStep(when=Above("approximate_kl", 1e-3)),
)
