"""REC: use group-relative REINFORCE as an off-policy algorithm, with a clip range and no importance weights.

    L = - mean over tokens of M_t A log p_t,   A = R - mean R
    M_t = 0 if A > 0 and p / p_old > 1.2, or A < 0 and p / p_old < 0.8

The paper finds that the clip range does most of the work in PPO, and importance weights do little. `Reinforce("ratio",
"ratio")` adds the weights. A wider range, `Clip(0.6, 2.0)`, trains faster in the paper's experiments. Related recipes
are `rep`, with a penalty in place of the clip range, and `red_weight`.

Equations:
    Read: the authors' public code and the abstract in its README; the paper's text was not read.

    - C1, advantage: `GroupRelative(scale="none")`; the code's form with the std is `GroupRelative(ddof=0)`.
    - C2, loss: `Reinforce`, without the ratio as weight; `Reinforce("ratio", "ratio")` has it.
    - C3, one-side clipping: `InBounds()`, with the bounds of `Clip()`.
    - C4, two-side clipping: `InBounds("two_sided")`.
    - C5, ring clipping: `InBounds("ring", 0.4, 3.0)`.
    - C6, response-level one-side clipping: `Ratio("sequence")`, `Clip(3e-4, 4e-4)` and `aggregate="sequence_mean"`.
    - C7, additive regularisers: left out: they replace the clip range; the recipe `rep` has one.
    - C8, RED-Drop: `reward.outcome.DropSurplus()` after `OutcomeScore()`.
    - C9, RED-Weight: left out: it replaces the clip range; the recipe `red_weight` has it.
    - C10, other baselines: AsymRE's is `GroupRelative(scale="none", shift=0.1)`. OPMD's is
      `BaselineRelative(kind="log_mean_exp", temperature=1.0)`; its division by 1 + tau is a smaller learning rate.
      TOPR's weight is `Reinforce("one", "ratio", at_most=1.0)` without a mask.

Differs:
    - Draws that RED-Drop drops: in the code they have advantage 0 and count in the denominator; here they do not count.
    - A group of one: the code raises an error, or has baseline 0 in AsymRE and OPMD; here its advantage is 0.
    - Age of samples: up to 20 steps in the code's examples; here the collector limits it, `Collector(staleness=...)`.

Source: arXiv:2509.24203.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import InBounds, Policy, Reinforce

REC = Recipe(
    name="rec",
    source="arXiv:2509.24203",
    advantage=GroupRelative(scale="none"),
    loss=Policy(surrogate=Reinforce(), mask=InBounds()),
)
