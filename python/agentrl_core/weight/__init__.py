"""Phase weight: how much each token counts. Denominators for ragged rows of your own; a `Batch` has `token_weights`."""

from agentrl_core.weight.denominators import constant, sequence_mean, token_mean

__all__ = ["constant", "sequence_mean", "token_mean"]
