"""What replay answers: draws of stored trajectories."""

from agentrl_core.data.draws import NEW, OWN, Draws, OldLogprob, Source

__all__ = ["NEW", "OWN", "Draws", "OldLogprob", "Source"]
