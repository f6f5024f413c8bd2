"""SSRL: a policy searches in itself: it writes the query and what a search would answer (arXiv:2508.10874).

    R = 0.9 [the answer is right] + 0.1 format,   then GRPO with 0.001 of k3 to the reference

Text in the tags of simulated results is not trained, like text of an environment. The same policy goes on
with a real search later. The format score (balanced tags, more of it for up to two thoughts, none above eight) is the
environment's `reward.format`. The paper's table of rewards differs a little from the public code, which is followed
here.

Needs: the facts success and `reward.format`; the model reference; the token column `simulated`, of
`arl.annotate(batch, "simulated", spans.Parsed(...))` with what finds `<information>...</information>`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.weight import MarkedScaled

SSRL = Recipe(
    name="ssrl",
    source="arXiv:2508.10874",
    reward=(OutcomeScore(success=0.9, failure=0.0), CombineReward(column="reward.format", coefficient=0.1)),
    advantage=GroupRelative(),
    weight=MarkedScaled(column="simulated", marked=0.0, of="keep"),
    loss=Policy(kl=KL(0.001)),
)
