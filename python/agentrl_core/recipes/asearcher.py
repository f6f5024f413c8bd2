"""ASearcher: train search agents of up to a hundred turns, while other rollouts still run (arXiv:2508.07976).

    A = (R - mean of the group), then (A - mean) / std over the tokens of the batch
    L = - mean over tokens of w min(u A, clip(u, 0.6, 1.4) A),   u = p / p_proximal,   w = p_proximal / p_behaviour
    tokens with w > 5 have no loss but count in the denominator; groups of equal rewards are replaced

The loss is AReaL's with a wider clip range. The score is the task's score times a flag for the right format; the
environment computes it. Generation runs at most 4 iterations ahead: `Collector(..., staleness=4)`.

Equations:
    Read: the public code, and notes on the paper; its text was not read.

    - C1, score: left out: the environment computes it.
    - C2, centring and dynamic filter: `GroupRelative(scale="none")` and `DynamicSampling(Band())`.
    - C3, sequences of a trajectory: not computed: `Forest.ingest` finds the calls that continue an earlier call, for
      every recipe.
    - C4, advantage: the second `GroupRelative`, over the trained tokens of the batch, std with divisor n.
    - C5, loss: `ImportanceWeight` and `Clip(0.4, 0.4, center="proximal")`.
    - C6, admission: `LimitStaleness(4)`, counted in batches; not computed: `Collector(..., concurrency=...)` sets how
      many rollouts run at once.

Differs:
    - Bias, scale and bound of the score: -0.5, 10 and 20 in the code. Bias and scale cancel in the normalisation, and
      scores of at most 1 do not reach the bound.

Needs: `proximal_logprob`, from `arl.annotate` before the first update.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Clip, Policy
from agentrl_core.schedule import LimitStaleness
from agentrl_core.select import Band, DynamicSampling
from agentrl_core.weight import ImportanceWeight

ASEARCHER = Recipe(
    name="asearcher",
    source="arXiv:2508.07976",
    admit=DynamicSampling(Band()),
    advantage=(
        GroupRelative(scale="none"),
        GroupRelative(column="advantage", group_by="batch", voter="token", ddof=0),
    ),
    weight=ImportanceWeight(logprob="proximal_logprob", kind="filter", at_most=5.0),
    loss=Policy(clip=Clip(0.4, 0.4, center="proximal")),
    hooks=LimitStaleness(4),
)
