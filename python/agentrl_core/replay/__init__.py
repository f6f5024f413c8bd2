"""Phase replay: stored trajectories that are drawn again."""

from agentrl_core.replay.draws import NEW, OWN, Draws
from agentrl_core.replay.imported import bring
from agentrl_core.replay.inject import Failed, Inject
from agentrl_core.replay.memory import Memory
from agentrl_core.replay.mix import Mix
from agentrl_core.replay.pairs import Pairs, pairs
from agentrl_core.replay.replay import Replay, explain
from agentrl_core.replay.sum_tree import SumTree
from agentrl_core.replay.texts import Text, Texts

__all__ = [
    "NEW",
    "OWN",
    "Draws",
    "Failed",
    "Inject",
    "Memory",
    "Mix",
    "Pairs",
    "Replay",
    "SumTree",
    "Text",
    "Texts",
    "bring",
    "explain",
    "pairs",
]
