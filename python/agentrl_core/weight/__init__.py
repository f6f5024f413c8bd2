"""Phase weight: how much each token counts.

Components that scale `weight` or leave rows out of the loss (`keep`), and the functions below
them: denominators for ragged rows of your own (a `Batch` has `token_weights`), selectors that turn scores into masks,
factors, and importance weights.
"""

from agentrl_core.weight.denominators import constant, sequence_mean, shares, token_mean, turn_mean
from agentrl_core.weight.difficulty import DifficultyScaled
from agentrl_core.weight.entropy_scaled import AnswerEntropyScaled, EntropyScaled
from agentrl_core.weight.exponential import AdvantageExponential
from agentrl_core.weight.factors import conflict_tokens
from agentrl_core.weight.filtered import FlagFilter, GroupFilter
from agentrl_core.weight.given import ColumnScaled
from agentrl_core.weight.importance import importance_diagnostics, importance_weights, trust_region
from agentrl_core.weight.negatives import LiveRescale, NegativeByConfidence, NegativeBySuccess
from agentrl_core.weight.off_policy import ImportanceWeight, TrustRegion
from agentrl_core.weight.rarity import DurationScaled
from agentrl_core.weight.select import above_quantile, max_variance_subset, quota, top
from agentrl_core.weight.select_draws import SelectDraws
from agentrl_core.weight.select_tokens import ConflictTokens, SelectTokens
from agentrl_core.weight.token_change import InputDependency

__all__ = [
    "AdvantageExponential",
    "AnswerEntropyScaled",
    "ColumnScaled",
    "ConflictTokens",
    "DifficultyScaled",
    "DurationScaled",
    "EntropyScaled",
    "FlagFilter",
    "GroupFilter",
    "ImportanceWeight",
    "InputDependency",
    "LiveRescale",
    "NegativeByConfidence",
    "NegativeBySuccess",
    "SelectDraws",
    "SelectTokens",
    "TrustRegion",
    "above_quantile",
    "conflict_tokens",
    "constant",
    "importance_diagnostics",
    "importance_weights",
    "max_variance_subset",
    "quota",
    "sequence_mean",
    "shares",
    "token_mean",
    "top",
    "trust_region",
    "turn_mean",
]
