"""Apriel-Reasoner: keep the share of each domain in training, and shorten easy answers (arXiv:2604.02007).

Domains differ in how many of their groups survive admission, so their shares drift. The groups of an iteration are
shared out by w_d = target_d min(target_d / realised_d, 5), realised_d the smoothed share of the domain among the draws
that were kept. A right answer is paid 1 - 0.2 p min(length / 16384, 1), with p the share of its group that succeeded:
short answers count where a task is easy, and hardly where it is hard. Then GRPO.

The paper describes both mechanisms and gives no formula; these are proposals. Targets are equal here: name your domains
in `select.Quota("math=0.4,code=0.3,...")`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.reward import LengthPenalty, OutcomeScore
from agentrl_core.select import ComposedSelector, Quota

APRIEL = Recipe(
    name="apriel",
    source="arXiv:2604.02007",
    select=ComposedSelector(quota=Quota(power=1.0, at_most=5.0)),
    reward=(
        OutcomeScore(success=1.0, failure=0.0),
        LengthPenalty(free=0, full_at=16384, coefficient=0.2, at_most=1.0, scale_by="group_mean", only="success"),
    ),
    advantage=GroupRelative(),
    loss=Policy(),
)
