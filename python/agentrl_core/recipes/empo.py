"""EMPO: without a judge, an answer is paid for how many of its group mean the same (arXiv:2504.05812).

    R_i = share of the group's answers in the cluster of answer i; 0 if it has no answer
    A = (R - mean) / std,   groups with a semantic entropy above 1.2 leave the loss
    L = - mean over answers of min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A),   s = (p(answer) / p_old(answer))^(1 / length)

The paper keeps prompts whose semantic entropy lies between two thresholds, which it does not give. Up to 1.2 nats the
largest cluster has at least exp(-1.2) = 0.30 of the answers, the share that the public code asks for; a group of
entropy 0 has no advantage. One ratio for an answer, as in GSPO, and no reference. A batch of 256 prompts has 8
optimizer steps: the clip acts from the second one on. Groups have 16 members (`collect(group_size=16)`).

Needs: the facts `answer_cluster` (answers that mean the same, see `reward.answer_clusters`) and `answer_parsed`.

Equations:
    Read: the paper's sections 3 and 4.1, and the public code of both of its frameworks.

    - 3, probability of a meaning: `AnswerAgreement`.
    - C1, clusters: `answer_clusters`, of the environment.
    - 4, semantic entropy: `AnswerAgreement`, which writes `semantic_entropy`.
    - 6, reward: `AnswerAgreement(all_distinct_zero=False)`.
    - C3, reward of the code: 0 if all answers differ, `AnswerAgreement()`. The advantage is 0 with both.
    - 5, advantage: `GroupRelative`, std of n - 1 and 1e-6 added to it.
    - 7, objective: `Policy(aggregate="sequence_mean")` and `GroupFilter`.
    - C4, ratio: `Ratio("sequence")`, `Clip(3e-4, 4e-4)`, 8 steps.
    - C5, loss of the code in TRL: `Policy(aggregate="sequence_mean")`, one step, 1e-4 added to the std.
    - C6, filter of the code: left out: it asks for a largest share of 0.3 or more; here the entropy is at most 1.2.

Differs:
    - Mean of the loss: over all tokens in the scripts, over answers in the paper, as here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy, Ratio
from agentrl_core.reward import AnswerAgreement
from agentrl_core.select import Band
from agentrl_core.weight import GroupFilter

EMPO = Recipe(
    name="empo",
    source="arXiv:2504.05812",
    frozen=("semantic",),
    reward=AnswerAgreement(all_distinct_zero=False),
    advantage=GroupRelative(),
    weight=GroupFilter(column="semantic_entropy", band=Band(std_above=None, at_most=1.2)),
    loss=Policy(ratio=Ratio("sequence"), clip=Clip(3e-4, 4e-4), aggregate="sequence_mean"),
    minibatches=8,
)
