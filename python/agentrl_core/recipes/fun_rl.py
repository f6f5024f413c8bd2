"""FunRL (EGPO): explore in the thoughts of a function call, and judge the call strictly (arXiv:2508.05118).

    A'_t = A + min(0.4 H_t, |A| / 2) for the tokens of thoughts, A for others,   A = (R - mean) / std

R is 1 if the call parses and is the right one in every name and value, which is the environment's to find. The paper
states that the bonus is bounded and does not give the formula; this one is ours, and never turns a sign.

Needs: the token column `thought`, of `arl.annotate(batch, "thought", spans.Tags(opening, closing))`; entropies of the
rollout.

Equations:
    Read: the abstract and notes of others; the paper's text was not read.

    - N1, reward: left out: the environment compares the calls and pays 0 or 1.
    - N2, group advantage: `GroupRelative`, std of n - 1.
    - N3, entropy-enhanced advantage: `EntropyBonus(within="thought")`: 0.4 for each nat, at most half the advantage.

Differs:
    - Bonus: no formula in what was read; coefficient 0.4 and bound 1/2 of the notes here.
    - Optimizer steps, clip range and KL: not stated; 1, 0.2 and none here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import EntropyBonus, GroupRelative
from agentrl_core.loss import Policy

FUN_RL = Recipe(
    name="fun_rl",
    source="arXiv:2508.05118",
    advantage=(GroupRelative(), EntropyBonus(within="thought")),
    loss=Policy(),
)
