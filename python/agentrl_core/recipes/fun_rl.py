"""FunRL (EGPO): explore in the thoughts before a function call, and reward only exact calls (arXiv:2508.05118).

    A'_t = A + min(0.4 H_t, |A| / 2) for the tokens of thoughts, A for others,   A = (R - mean) / std

R is 1 if the call parses and all its names and values are right; the environment checks this. The paper states that the
bonus is bounded but does not give the formula; this formula is ours, and never changes the sign of an advantage.

Needs: the token column `thought`, from `arl.annotate(batch, "thought", spans.Tags(opening, closing))`; entropies of the
rollout.

Equations:
    Read: the abstract and notes of others; the paper's text was not read.

    - N1, reward: left out: the environment compares the calls and returns 0 or 1.
    - N2, group advantage: `GroupRelative`, std with denominator n - 1.
    - N3, entropy-enhanced advantage: `EntropyBonus(within="thought")`: 0.4 per nat, at most half the advantage.

Differs:
    - Bonus: no formula in the sources that were read; coefficient 0.4 and bound 1/2 of the notes here.
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
