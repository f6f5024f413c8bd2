"""Phase weight: how much each token counts.

Denominators for ragged rows of your own (a `Batch` has `token_weights`), selectors that turn scores into masks,
factors, and importance weights.
"""

from agentrl_core.weight.denominators import constant, sequence_mean, shares, token_mean, turn_mean
from agentrl_core.weight.factors import (
    by_sign,
    conflict_tokens,
    covariance,
    damping,
    entropy_change,
    novelty_bonus,
    probability_shape,
)
from agentrl_core.weight.importance import (
    balanced_bounds,
    importance_diagnostics,
    importance_weights,
    second_moment_bound,
    trust_region,
)
from agentrl_core.weight.select import above_quantile, max_variance_subset, quota, sample_band, top

__all__ = [
    "above_quantile",
    "balanced_bounds",
    "by_sign",
    "conflict_tokens",
    "constant",
    "covariance",
    "damping",
    "entropy_change",
    "importance_diagnostics",
    "importance_weights",
    "max_variance_subset",
    "novelty_bonus",
    "probability_shape",
    "quota",
    "sample_band",
    "second_moment_bound",
    "sequence_mean",
    "shares",
    "token_mean",
    "top",
    "trust_region",
    "turn_mean",
]
