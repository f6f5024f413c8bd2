"""MARS: self-play in games, credit for each turn, and a baseline for each seat (arXiv:2510.15414).

    r~_t = r_t - mean of r over all turns of the same game and player in the batch,   G_t = sum over k >= t of r~_k
    A = (G - mean) / sqrt(variance + 1e-8) over the tokens of the batch

One trajectory for each player of a game: its own turns are trained, those of the others are its context. A turn longer
than 2048 tokens loses up to 1/2 for every 2037 tokens more. A game is played once for each group, so the baseline is
that of all games of a kind: the fact `env_tag` names it, and the seat is the agent. The public code also centres G over
the distinct values of a player, each counted once, which is not done here. Its dual bound is 1 + 2 clip.

Needs: the fact `env_tag` of trajectories; rewards of steps; the model reference.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.reward import LengthPenalty, OutcomeScore
from agentrl_core.rollout import SelfPlay

MARS = Recipe(
    name="mars",
    source="arXiv:2510.15414",
    rollout=SelfPlay(agents=("first", "second")),
    reward=(
        OutcomeScore(),
        OutcomeScore(level="step"),
        LengthPenalty(free=2048, full_at=4085, coefficient=0.5, level="step"),
    ),
    advantage=(
        GroupRelative(column="step_score", level="step", group_by="env_tag,agent", scale="none"),
        Discounted(column="advantage"),
        GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
    ),
    loss=Policy(clip=Clip(dual=1.4), kl=KL(0.2)),
)
