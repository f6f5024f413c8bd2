"""EMPO: reward an answer by the share of its group with the same meaning, without a judge (arXiv:2504.05812).

    R_i = share of the group's answers in the cluster of answer i; 0 if it has no answer
    A = (R - mean) / std,   groups with a semantic entropy above 1.2 leave the loss
    L = - mean over answers of min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A),   s = (p(answer) / p_old(answer))^(1 / length)

The paper keeps prompts with a semantic entropy between two thresholds, which it does not give. If the entropy is at
most 1.2 nats, the largest cluster has at least exp(-1.2) = 0.30 of the answers, the share that the public code
requires. A group of entropy 0 has no advantage. Each answer has one importance ratio, as in GSPO, and there is no
reference model. A batch of 256 prompts has 8 optimizer steps, so the clip acts from the second step on. Groups have 16
members (`collect(group_size=16)`).

Needs: the facts `answer_cluster` (equal for answers with the same meaning, see `reward.majority_vote.answer_clusters`)
and `answer_parsed`.

Equations:
    Read: the paper's sections 3 and 4.1, and the public code of both of its frameworks.

    - 3, probability of a meaning: `AnswerAgreement`.
    - C1, clusters: `answer_clusters`, which the environment calls.
    - 4, semantic entropy: `AnswerAgreement`, which writes `semantic_entropy`.
    - 6, reward: `AnswerAgreement(all_distinct_zero=False)`.
    - C3, reward of the code: 0 if all answers differ, `AnswerAgreement()`. The advantage of such a group is 0 in both
      cases.
    - 5, advantage: `GroupRelative`, std with divisor n - 1, plus 1e-6.
    - 7, objective: `Policy(aggregate="sequence_mean")` and `GroupFilter`.
    - C4, ratio: `Ratio("sequence")`, `Clip(3e-4, 4e-4)`, 8 optimizer steps.
    - C5, loss of the code in TRL: `Policy(aggregate="sequence_mean")`, one optimizer step, 1e-4 added to the std.
    - C6, filter of the code: left out: it requires a largest cluster with a share of at least 0.3; here the entropy is
      at most 1.2.

Differs:
    - Mean of the loss: over all tokens in the scripts, over answers in the paper and here.
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
