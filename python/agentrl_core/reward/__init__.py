"""Phase reward: from what the environment paid to the score that training uses."""

from agentrl_core.reward.outcome import Outcome

__all__ = ["Outcome"]
