"""MARS: self-play of games, whose players are compared with themselves, turn by turn.

One trajectory for each player of a game: its own turns are trained, those of the others are its context. What each turn
is paid is centred over the turns of the batch with the same player; the advantage of a turn is the sum of that
from it on (gamma 1). Then it is whitened over the tokens of the batch, and PPO with clip 0.2. Source: arXiv:2510.15414.
A batch of several games needs a key fact that names them beside `agent`. What its public code does besides (centring
over distinct values) is not here.
"""

from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import Policy
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Play

MARS = Recipe(
    name="mars",
    source="arXiv:2510.15414",
    rollout=Play(agents="first,second"),
    advantage=(
        GroupRelative(column="reward", level="step", group_by="agent", scale="none"),
        Discounted(column="advantage"),
        GroupRelative(column="advantage", level="token", group_by="batch", voter="token", eps=0.0, variance_eps=1e-8),
    ),
    loss=Policy(),
)
