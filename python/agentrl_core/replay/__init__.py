"""Phase replay: stored trajectories that are drawn again."""

from agentrl_core.data.replayed_draws import Draws
from agentrl_core.replay.base import Replay
from agentrl_core.replay.inject import GroupFailed, Inject
from agentrl_core.replay.memory import Memory
from agentrl_core.replay.mix import Mix
from agentrl_core.replay.pairs import Pairs, pairs

__all__ = [
    "Draws",
    "GroupFailed",
    "Inject",
    "Memory",
    "Mix",
    "Pairs",
    "Replay",
    "pairs",
]
