"""RL's Razor: penalise and limit the policy's divergence from its base model, to reduce forgetting.

    F = mean over the tokens of new tasks of k3(p, p_base);   the training ends where F is above 0.1
    L = GRPO's, and 0.001 F

The paper's predictor is KL(base || policy), which needs samples of the base; on the policy's own rollouts k3 of the
other direction stands for it. It gives no budget: 0.1 is a proposal, as is the coefficient, without which nothing is
measured. Of two checkpoints of equal reward take the one of smaller F (metric `reference_kl`); instead of the end there
is `recipes.rl_100.RollbackModels`.

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
