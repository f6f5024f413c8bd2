"""ROSA: after each turn, regress the policy towards the best one by that turn's feedback (T2PAM).

    L = (log p - log p_old - r / beta)^2 of the whole answer,   beta = 1

The policy that best trades the feedback r against its distance from the last one weighs the answer by
exp(r / beta) / Z, and Z is 1 for an answer as unlikely as any long one is. The paper solves the linearised problem for
a small part of the parameters by one least-squares step, which is the optimizer's; it does not state beta.

Source: T2PAM, "Test-Time Policy Adaptation for Enhanced Multi-Turn Interactions with LLMs", arXiv:2509.23166.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Regression

ROSA = Recipe(
    name="rosa",
    source="arXiv:2509.23166",
    advantage=GroupRelative(center="none", scale="none"),
    loss=Regression(residual="log_ratio"),
)
