"""Groups of rows: statistics, values normalised within their group, and baselines with state."""

from agentrl_core.operators.group.moments import statistics, sums
from agentrl_core.operators.group.normalise import normalise, whiten
from agentrl_core.operators.group.reduce import mean_one, min_max, quantile, rank, softmax

__all__ = [
    "mean_one",
    "min_max",
    "normalise",
    "quantile",
    "rank",
    "softmax",
    "statistics",
    "sums",
    "whiten",
]
