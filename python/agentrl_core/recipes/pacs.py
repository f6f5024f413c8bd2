"""PACS: learn from verified outcomes by classification, with the policy's log-ratios as scores (arXiv:2509.02522).

    psi_i = q_i - mean q of the other answers,   q = sum over the answer of log p - log p_old
    L = mean_i c_i BCE(sigmoid(psi_i), right_i),   c_i = group size / (2 * size of the answer's class)

An answer is right if its score is above 0: the advantage is the raw score, and the loss reads its sign. Gradients flow
through the baselines too, so each group must be whole in one pack. There is neither a clip range nor a KL. The code's
other scores psi are `OutcomeClassifier(baseline="standard")` and `"none"`; its beta is 1 or 2.

Equations:
    Read: the public code and README; not the paper's text.

    - C1, implicit reward: `OutcomeClassifier(beta=1)`; the code's second method, a mean of log p without the old
      policy, is an option that the recipe leaves out.
    - C2, score: `OutcomeClassifier(baseline="leave_one_out")`.
    - C3, class weights: `OutcomeClassifier(balanced=True)`; the modes that train only one class are left out.
    - C4, loss: `OutcomeClassifier`, a mean over answers.
    - C5, gradient: the gradient of `OutcomeClassifier`, through all scores of a group.

Differs:
    - Group of one: the code divides by 0; here its score is q.
    - Tokens of tools: the code has none; here they do not count in q.
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
