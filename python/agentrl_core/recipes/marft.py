"""MARFT: several agents that act one after the other, and credit that flows through all of them (arXiv:2504.16129).

Each agent of an episode has a trajectory; their steps are one chain, ordered by turn and agent:

    delta = r + 0.99 V_next - V,   A = delta + 0.99 * 0.95 A_next,   V_next that of the next agent's step

The ratio is that of a whole action, clipped at 0.2, and actions count alike; entropy 0.01; the critic has a Huber loss
(10) with clipped values. An optimizer step of the policy is left out where its approximate KL is above 0.001. Five
epochs of four minibatches. Here are two agents, `first` and `second`; give `SelfPlay` the names of your environment's.
Public code can also train the agents by turns, which is `loss=(Train(..., where=Where("agent", ...)), ...)` by a
schedule, and whitens advantages with 0 as missing, which is not done here. Token level: `Gae(gamma=0.99, lam=0.95)`
and no `ratio`.

Needs: rewards of steps; the model critic.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.loss import Policy, Ratio, Train, Value
from agentrl_core.rollout import SelfPlay
from agentrl_core.schedule import Above, SkipStep

MARFT = Recipe(
    name="marft",
    source="arXiv:2504.16129",
    rollout=SelfPlay(agents=("first", "second")),
    advantage=Gae(level="agent", gamma=0.99, lam=0.95, column="reward", outcome=""),
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
