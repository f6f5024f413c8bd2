"""Phase weight: how much each token counts.

Components that scale `weight` or leave rows out of the loss (`keep`) by facts of the rollout, and the functions below
them: denominators for ragged rows of your own (a `Batch` has `token_weights`), selectors that turn scores into masks,
and importance weights. What follows the policy as it is now is a part of the loss.
"""

from agentrl_core.weight.denominators import constant, sequence_mean, shares, token_mean, turn_mean
from agentrl_core.weight.entropy import EntropyScaled
from agentrl_core.weight.expert_mask import UnsampledExpert
from agentrl_core.weight.filters import FlagFilter, GroupFilter
from agentrl_core.weight.importance import (
    ImportanceWeight,
    TrustRegion,
    importance_diagnostics,
    importance_weights,
    trust_region,
)
from agentrl_core.weight.latest_version import Newest
from agentrl_core.weight.scaled import ColumnScaled, LiveRescale, MarkedScaled
from agentrl_core.weight.select import SelectDraws, SelectTokens, above_quantile, max_variance_subset, top

__all__ = [
    "ColumnScaled",
    "EntropyScaled",
    "FlagFilter",
    "GroupFilter",
    "ImportanceWeight",
    "LiveRescale",
    "MarkedScaled",
    "Newest",
    "SelectDraws",
    "SelectTokens",
    "TrustRegion",
    "UnsampledExpert",
    "above_quantile",
    "constant",
    "importance_diagnostics",
    "importance_weights",
    "max_variance_subset",
    "sequence_mean",
    "shares",
    "token_mean",
    "top",
    "trust_region",
    "turn_mean",
]
