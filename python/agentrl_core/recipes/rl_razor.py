"""RL's Razor: train on-policy, and measure the divergence from the base model, which predicts forgetting.

    L = GRPO's;   F = mean over the tokens of new tasks of k3(p, p_base), the metric `reference_kl`

The paper reports a finding, not an algorithm: on-policy training prefers the solutions of a new task that are closest
to the base, and forgetting follows from the divergence from the base on the new task. So the recipe only measures: the
divergence has the coefficient 1e-9, to get the metric. Of two checkpoints of equal reward, take the one with smaller
F. Two uses of the finding are proposals, and options: a penalty, `Policy(kl=KL(0.001))`, and an end of the training,
`hooks=StopTraining(when=Above("reference_kl", 0.1))`; an alternative to ending the training is
`recipes.rl_100.RollbackModels`.

Equations:
    Read: the abstract, an extract of the paper's first version, and notes of others.

    - N1, predictor of forgetting: not computed: it needs samples of the base, and the rollouts are the policy's.
    - N2, proxy on policy rollouts: `KL`, the metric `reference_kl`.
    - N3, law of forgetting: not computed: its coefficients are fitted to evaluations of old tasks.
    - N4, KL-minimal solution: not computed: the paper constructs it by rejection sampling, as an oracle for
      supervised training.
    - N5, 1-0 Reinforce: an option, `GroupRelative(center="none", scale="none")` with `Policy(surrogate=Reinforce(),
      clip=None, aggregate="constant", constant=1.0)`.

Differs:
    - Predictor: the forward divergence of responses in the paper; the reverse divergence here, as a mean over tokens.
    - Clip, optimizer steps: not stated; 0.2 and 1 here.

Source: RL's Razor: Why Online Reinforcement Learning Forgets Less (arXiv:2509.04259). Needs: the base model as
reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy

RL_RAZOR = Recipe(
    name="rl_razor",
    source="arXiv:2509.04259",
    advantage=GroupRelative(),
    loss=Policy(kl=KL(1e-9)),
)
