"""Phase weight: the weight of each token in the loss.

It has components that scale `weight` or exclude rows from the loss (`keep`) by facts of the rollout, and the functions
that they use: denominators for custom ragged rows (a `Batch` has `token_weights`), selectors that turn scores into
masks, and importance weights. Weights that depend on the current policy are part of the loss.
"""

from agentrl_core.weight.entropy import EntropyScaled
from agentrl_core.weight.expert_mask import ExpertMask
from agentrl_core.weight.filters import FlagFilter, GroupFilter
from agentrl_core.weight.importance import ImportanceWeight, importance_diagnostics
from agentrl_core.weight.scaled import ColumnScaled, MarkedScaled, SignalRescale
from agentrl_core.weight.select import SelectDraws, SelectTokens

__all__ = [
    "ColumnScaled",
    "EntropyScaled",
    "ExpertMask",
    "FlagFilter",
    "GroupFilter",
    "ImportanceWeight",
    "MarkedScaled",
    "SelectDraws",
    "SelectTokens",
    "SignalRescale",
    "importance_diagnostics",
]
