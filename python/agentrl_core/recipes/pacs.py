"""PACS: learn from verified outcomes by classification, with the policy's own log-ratios as scores (arXiv:2509.02522).

    psi_i = q_i - mean of the others' q,   q = sum over the answer of log p - log p_old
    L = mean_i c_i BCE(sigmoid(psi_i), right_i),   c_i = group size / (2 * size of the answer's class)

An answer is right if its score is above 0: the advantage is the score as it is, and the loss reads its sign. Gradients
flow through the baselines too, so a group lies whole in one pack. Neither clip nor KL. The code's other scores psi are
`OutcomeClassifier(baseline="standard")` and `"none"`; beta is 1 or 2.

Equations:
    Read: the public code and README; not the paper's text.

    - C1, implicit reward: `OutcomeClassifier(beta=1)`; its second method, a mean of log p without the old policy, is an
      option of the code that the recipe leaves out.
    - C2, score: `OutcomeClassifier(baseline="leave_one_out")`.
    - C3, class weights: `OutcomeClassifier(balanced=True)`; the modes that train one class alone are left out.
    - C4, loss: `OutcomeClassifier`, a mean over answers.
    - C5, gradient: that of `OutcomeClassifier`, through all scores of a group.

Differs:
    - Group of one: the code divides by 0; here its score is q.
    - Tokens of tools: the code has none; they are no part of q here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import OutcomeClassifier

PACS = Recipe(
    name="pacs",
    source="arXiv:2509.02522",
    advantage=GroupRelative(center="none", scale="none"),
    loss=OutcomeClassifier(),
    minibatches=4,
)
