"""RL's Razor: penalise and limit the policy's divergence from its base model, to reduce forgetting.

    F = mean over the tokens of new tasks of k3(p, p_base);   the training ends where F is above 0.1
    L = GRPO's, and 0.001 F

The paper is a finding and no algorithm: on-policy training prefers those solutions of a new task that are closest to
the base, and forgetting follows from the divergence from it on the new task. The price and the end of the training are
proposals. Of two checkpoints of equal reward take the one of smaller F (metric `reference_kl`); instead of the end
there is `recipes.rl_100.RollbackModels`.

Equations:
    Read: the abstract, an extract of the paper's first version, and notes of others.

    - N1, predictor of forgetting: not computed: it needs samples of the base, and the rollouts are the policy's.
    - N2, proxy on policy rollouts: `KL`, the metric `reference_kl`.
    - N3, law of forgetting: not computed: its coefficients are fitted to evaluations of old tasks.
    - N4, KL-minimal solution: not computed: an oracle of the paper's supervised training, by rejection sampling.
    - N5, 1-0 Reinforce: an option, `GroupRelative(center="none", scale="none")` with
      `Policy(surrogate=Reinforce(), clip=None)`.

Differs:
    - KL: none in the paper's main experiments; 0.001 here, without which nothing is measured.
    - Budget: none in the paper; the training ends above 0.1, a proposal.
    - Predictor: the forward divergence in the paper, the reverse one here.
    - Clip, optimizer steps: not stated; 0.2 and 1 here.

Source: RL's Razor: Why Online Reinforcement Learning Forgets Less (arXiv:2509.04259). Needs: the base model as
reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy
from agentrl_core.schedule import Above, StopTraining

RL_RAZOR = Recipe(
    name="rl_razor",
    source="arXiv:2509.04259",
    advantage=GroupRelative(),
    loss=Policy(kl=KL(0.001)),
    hooks=StopTraining(when=Above("reference_kl", 0.1)),
)
