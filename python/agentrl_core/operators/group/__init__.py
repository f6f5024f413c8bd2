"""Groups of rows: their statistics, values compared with them, and the baselines that remember."""

from agentrl_core.operators.group.baseline import decayed_beta, ema_mean, running_moments, shrunk_mean, window_quantile
from agentrl_core.operators.group.normalise import normalise, whiten
from agentrl_core.operators.group.ranks import PartialStatistics
from agentrl_core.operators.group.reduce import arg_extreme, log_mean_exp, mean_one, min_max, quantile, rank, softmax
from agentrl_core.operators.group.statistics import GroupStatistics, statistics, sums

__all__ = [
    "GroupStatistics",
    "PartialStatistics",
    "arg_extreme",
    "decayed_beta",
    "ema_mean",
    "log_mean_exp",
    "mean_one",
    "min_max",
    "normalise",
    "quantile",
    "rank",
    "running_moments",
    "shrunk_mean",
    "softmax",
    "statistics",
    "sums",
    "whiten",
    "window_quantile",
]
