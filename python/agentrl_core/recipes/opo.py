"""OPO: take exact on-policy steps with the baseline of least variance (arXiv:2505.23585).

    b = sum_i l_i R_i / sum_i l_i,   L = - mean_i sum_t (R_i - b) log p_t

with l_i the length of answer i. If the gradients of tokens are similar, an answer's squared gradient grows with its
length, and so does its weight in the baseline. There is no ratio, clip or reference: each batch has one optimizer
step.

Equations:
    Read: verl's code and notes.

    - C1, baseline: `BaselineRelative(kind="weighted", column="trained_tokens")`.
    - C2, advantage: the same component, without a std.
    - C3, a group of one: left out: by the formula the baseline is its own reward, so the advantage is 0 here; the
      code takes a baseline of 0.
    - N1, exact on-policy: `Reinforce`, one optimizer step a batch, neither KL nor entropy.

Differs:
    - Aggregation: the sum over the tokens of an answer, then the mean over answers.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import BaselineRelative
from agentrl_core.loss import Policy, Reinforce

OPO = Recipe(
    name="opo",
    source="arXiv:2505.23585",
    advantage=BaselineRelative(kind="weighted", column="trained_tokens"),
    loss=Policy(clip=None, surrogate=Reinforce(), aggregate="constant", constant=1.0),
)
