"""Phase weight: the weight of each token in the loss.

It has components that scale `weight` or exclude rows from the loss (`keep`) by facts of the rollout. The functions on
plain columns that they use are in `operators`: `row_selection` turns scores into masks, `importance` has importance
weights. Weights that depend on the current policy are part of the loss.
"""

from agentrl_core.weight.entropy import EntropyScaled
from agentrl_core.weight.expert_mask import ExpertMask
from agentrl_core.weight.filters import FlagFilter, GroupFilter
from agentrl_core.weight.importance import ImportanceWeight
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
]
