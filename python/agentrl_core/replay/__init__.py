"""Phase replay: stored trajectories that are drawn again."""

from agentrl_core.replay.draws import Draws
from agentrl_core.replay.replay import Replay

__all__ = ["Draws", "Replay"]
