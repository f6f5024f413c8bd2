"""Statistics of scores over runs: intervals, comparisons of systems, tests of paired runs, and their plots.

Scores are a table `[runs, tasks]`. Point estimates equal those of rliable (Agarwal et al. 2021, arXiv:2108.13264).
"""

from agentrl_core.stats.intervals import Estimate, bootstrap, performance_profile, probability_of_improvement
from agentrl_core.stats.paired import PairedDifference, detectable_effect, holm, paired_difference
from agentrl_core.stats.plots import plot_estimates, plot_profiles

__all__ = [
    "Estimate",
    "PairedDifference",
    "bootstrap",
    "detectable_effect",
    "holm",
    "paired_difference",
    "performance_profile",
    "plot_estimates",
    "plot_profiles",
    "probability_of_improvement",
]
