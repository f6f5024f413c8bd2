"""DID: use DPO's loss, which fits if preferences follow the ratio of the target policy to the reference.

    L = - log sigmoid(0.1 (x_chosen - x_rejected)),   x = sum over the answer of log p - log p_ref

The differential information of an answer is proportional to p / p_ref: the reference multiplied by it is the policy.
Suppose that preferences follow the differential information of the target policy, raised to the power of 0.1. Then x is
the only reward whose optimum is the target policy. The paper explains DPO and changes nothing of it: the loss is DPO's.
The entropy of the information, with which the paper explains which tasks gain, is left out: it analyses trained
policies.

Equations:
    Read: the abstract, and notes of others; the paper's text was not read.

    - N1, differential information distribution: left out: it explains the loss, which does not need it normalised.
    - N2, preference that encodes it: exp(-L) of `Preference`.
    - N3, power law of the pairs: left out: it is about the distribution of rejected answers; here the pairs are given.
    - N4, entropy of the DID over a set: left out: it analyses a trained policy; nothing is trained by it.
    - N5, entropy of the DID by sampling: left out: it analyses a trained policy; nothing is trained by it.
    - N6, DPO: `Preference`, sums over the tokens of the policy.

Differs:
    - Weight beta: not stated in the sources read; 0.1 in the notes and here.

Source: "Differential Information Distribution" (arXiv:2505.23761). Needs: the model reference.
"""

from __future__ import annotations

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Preference

DID = Recipe(name="did", source="arXiv:2505.23761", advantage=GroupRelative(), loss=Preference())
