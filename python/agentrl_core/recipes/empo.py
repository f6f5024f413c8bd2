"""EMPO: without a judge, an answer is paid for how many of its group mean the same (arXiv:2504.05812).

    R_i = share of the group's answers in the cluster of answer i; 0 if no two agree, or it has none
    A = (R - mean) / std,   groups with a semantic entropy above 1.2 leave the loss

The paper keeps prompts whose semantic entropy lies between two thresholds, which it does not give. Up to 1.2 nats the
largest cluster has at least exp(-1.2) = 0.30 of the answers, the share that the public code asks for. That code trains
with one ratio for an answer, as GSPO does; this is GRPO's loss without a reference.

Needs: the facts `answer_cluster` (answers that mean the same, see `reward.answer_clusters`) and `answer_parsed`.

Equations:
    Read: the public code, notes, and the abstract.

    - C1, clusters: `answer_clusters`, of the environment.
    - C2, entropy: `AnswerAgreement`, which writes `semantic_entropy`.
    - C3, reward: `AnswerAgreement`; 0 if all answers differ.
    - C4, advantage and loss: `GroupRelative` and `Policy(aggregate="sequence_mean")`.
    - N1, filter of prompts: left out: the code asks for a largest share of 0.3 or more; here the entropy is at most
      1.2, as the paper filters by entropy.

Differs:
    - Epsilon of the advantage: 1e-4 in TRL, 1e-6 here.
    - Group size: 7 in the code; here it is that of `collect`.
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
