"""REINFORCE++-baseline: subtract the group mean from scores, then normalise over the whole batch (arXiv:2501.03262).

    A_i = R_i - mean(R of the group),   then (A - mean) / max(std, 1e-4) over all tokens of the batch

The loss is PPO's clipped loss plus the KL penalty beta k2 to a reference, beta = 1e-5. It is the form of REINFORCE++
for several rollouts per task: the group mean measures how hard the task is, and the batch sets the size of a step.

Equations:
    Read: the authors' code (OpenRLHF), verl's code, and notes on the paper; the paper's text was not read.

    - 6, group mean: `GroupRelative(scale="none")`.
    - 7, global normalisation: the second `GroupRelative`, over all trained tokens, variance with divisor n.
    - 8, loss: `Policy(kl=KL(1e-5, "k2"))`.
    - C1, correction for the engine: an option of the authors' script, `old_logprob="recomputed"` with
      `ImportanceWeight(kind="mask", at_least=0.5, at_most=5.0)`.
    - C2, dynamic filter: an option of the authors' script, `admit=DynamicSampling(Band())`.

Differs:
    - Statistics: over the responses in the paper's appendix (`level="draw"`); over tokens in its code and here.
    - Variance in verl: divisor n - 1, plus 1e-8; `ddof=1, scale_at_least=0.0, variance_eps=1e-8` computes it.
    - A group of one: 0 before the normalisation in the authors' code and here; verl keeps its score.
    - Mean of the loss: over each response first in the paper's equation 1; over all tokens in its code and here.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy

REINFORCE_PLUS_PLUS_BASELINE = Recipe(
    name="reinforce_plus_plus_baseline",
    source="arXiv:2501.03262",
    advantage=(
        GroupRelative(scale="none"),
        GroupRelative(column="advantage", level="token", group_by="batch", ddof=0, eps=0.0, scale_at_least=1e-4),
    ),
    loss=Policy(kl=KL(1e-5, "k2")),
)
