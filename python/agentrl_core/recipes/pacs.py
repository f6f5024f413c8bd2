"""PACS: learn from verified outcomes by classification, with the policy's own log-ratios as scores (arXiv:2509.02522).

    psi_i = q_i - mean of the others' q,   q = sum over the answer of log p - log p_old
    L = mean_i c_i BCE(sigmoid(psi_i), right_i),   c_i = group size / (2 * size of the answer's class)

Gradients flow through the baselines too, so a group lies whole in one pack. Neither clip nor KL nor advantages: these
only mark right answers, those above the mean of their group. In a group that is all right or all wrong that
is wrong, which costs the same, as the psi of a group add up to 0. The paper's other scores:
`OutcomeClassifier(baseline="standard")` and `"none"`, the latter with `label="score"`; beta is 1 or 2.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import OutcomeClassifier

PACS = Recipe(name="pacs", source="arXiv:2509.02522", advantage=GroupRelative(), loss=OutcomeClassifier())
