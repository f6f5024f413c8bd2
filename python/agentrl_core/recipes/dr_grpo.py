"""Dr. GRPO: GRPO without the divisions that favour long wrong answers and easy or hard tasks (arXiv:2503.20783).

    A_i = R_i - mean(R),   L = - 1/G sum_i sum_t min(r_t A_i, clip(r_t, 0.8, 1.2) A_i)

Nothing is divided by the standard deviation or by the length of an answer: the loss is a plain sum over tokens. Public
code divides this sum by the length of the longest allowed answer, a constant that scales the learning rate:
`DR_GRPO.replace(loss=loss.Policy(aggregate="constant", constant=3000.0))`. A batch of 128 groups of 8 has eight
optimizer steps with 128 answers each: the clip range takes effect from the second one on.

Equations:
    Read: the public code, its scripts and the abstract.

    - C1, advantage: `GroupRelative(scale="none")`.
    - C2, loss: `Policy(aggregate="constant")`, clip range 0.2, mean over rollouts.
    - C3, GRPO of the same code: `recipes.GRPO`, with `GroupRelative(eps=1e-8)`.

Differs:
    - Constant: the longest allowed answer in the code, 1 here, since a recipe does not contain that length.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy

DR_GRPO = Recipe(
    name="dr_grpo",
    source="arXiv:2503.20783",
    advantage=GroupRelative(scale="none"),
    loss=Policy(aggregate="constant", constant=1.0),
    minibatches=8,
)
