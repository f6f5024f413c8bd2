"""REP: REINFORCE on group-relative rewards, held near the sampling policy by a squared log-ratio (arXiv:2509.24203).

    L = mean over answers of [ - A log p(y) + 0.1 (log p(y) - log p_old(y))^2 ],   A = R - mean R

log p(y) is the sum over the tokens of an answer. This is the loss of Kimi k1.5 and of OPMD, and a relative of `rec`;
`Regression` equals it up to constants. The public code squares the log-ratio of each token and takes one mean over
tokens: `Policy(clip=None, surrogate=Reinforce(), drift=KL(0.2, "k2"))`. AsymRE has the likelihood of the sampled
answers instead of the square: `drift=KL(0.1, "k1", direction="forward")` in the code, or the shifted baseline
`GroupRelative(scale="none", shift=0.1)`.

Equations:
    Read: the authors' code, and a note of others; the paper's text was not read.

    - C1, advantage: `GroupRelative(scale="none")`.
    - N1, OPMD of the paper: `Regression(residual="log_ratio")` with a coefficient of beta / 2, mean over answers; the
      value of this loss also has the constants A^2 / (2 beta) and A log p_old.
    - C2, OPMD of the code: an option, `Policy(drift=KL(0.2, "k2"))`: k2 is half the square.
    - C3, AsymRE: an option, `drift=KL(0.1, "k1", direction="forward")`; the value of this loss also has the constant of
      p_old.
    - N2, AsymRE of the paper: `GroupRelative(scale="none", shift=0.1)` without `drift`, an option.

Differs:
    - KL: none to a reference; the penalty is on the divergence from the policy that sampled.
    - Coefficient: the note has no beta; 0.2 here, half of which is the code's 0.1.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Regression

REP = Recipe(
    name="rep",
    source="arXiv:2509.24203",
    advantage=GroupRelative(scale="none"),
    loss=Regression(beta=0.2, residual="log_ratio", coefficient=0.1),
)
