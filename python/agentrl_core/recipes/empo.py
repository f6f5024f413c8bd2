"""EMPO: without a judge, an answer is paid for how many of its group mean the same (arXiv:2504.05812).

    R_i = share of the group's answers in the cluster of answer i; 0 where no two agree, or it has none
    A = (R - mean) / std,   groups with a semantic entropy above 1.2 leave the loss

The paper keeps prompts whose semantic entropy lies between two thresholds, which it does not give. Up to 1.2 nats the
largest cluster has at least exp(-1.2) = 0.30 of the answers, the share that the public code asks for. That code trains
with one ratio for an answer, as GSPO does; this is GRPO's loss without a reference.

Needs: the facts `answer_cluster` (answers that mean the same, see `reward.answer_clusters`) and `answer_parsed`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.reward import AnswerAgreement
from agentrl_core.select import Band
from agentrl_core.weight import GroupFilter

EMPO = Recipe(
    name="empo",
    source="arXiv:2504.05812",
    frozen=("semantic",),
    reward=AnswerAgreement(),
    advantage=GroupRelative(),
    weight=GroupFilter(column="semantic_entropy", band=Band(std_above=None, at_most=1.2)),
    loss=Policy(aggregate="sequence_mean"),
)
