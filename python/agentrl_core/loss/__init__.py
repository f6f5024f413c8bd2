"""Phase loss: from log-probs, entropies and the streams of a pack to one number to differentiate."""

from agentrl_core.loss.policy import KL, Clip, Loss, Policy

__all__ = ["KL", "Clip", "Loss", "Policy"]
