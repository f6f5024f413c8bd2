"""Phase replay: stored trajectories that are drawn again."""

from agentrl_core.data.draws import Draws
from agentrl_core.replay.base import Replay, draw_reasons
from agentrl_core.replay.inject import GroupFailed, Inject
from agentrl_core.replay.memory import Memory
from agentrl_core.replay.mix import Mix
from agentrl_core.replay.pairs import Pairs, pairs
from agentrl_core.replay.sum_tree import SumTree
from agentrl_core.replay.text_memory import TextEntry, TextLibrary

__all__ = [
    "Draws",
    "GroupFailed",
    "Inject",
    "Memory",
    "Mix",
    "Pairs",
    "Replay",
    "SumTree",
    "TextEntry",
    "TextLibrary",
    "draw_reasons",
    "pairs",
]
