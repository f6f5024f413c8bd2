"""IterResearch: each round sees the question, the last round and its result, and nothing else (arXiv:2511.07327).

A round thinks, writes the report so far and acts; the next one sees the question, that round and what it was answered,
so that the report is all that it remembers. An earlier round is worth less, r_t = gamma^(T - t) R with gamma 0.995, and
(r - mean) / std is over all rounds of the question's trajectories. The ratio is that of the round's sequence (GSPO)
with clips of 3e-4 and 4e-4; the paper does not say its gamma and clips. The last round is shown with its thoughts here.
"""

from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import Clip, Policy, Ratio
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Window

ITER_RESEARCH = Recipe(
    name="iter_research",
    source="arXiv:2511.07327",
    rollout=Window(turns=1),
    advantage=(
        Discounted(column="", outcome="score", gamma=0.995),
        GroupRelative(column="advantage", level="step"),
    ),
    loss=Policy(ratio=Ratio("step"), clip=Clip(3e-4, 4e-4)),
)
