"""Phase weight: how much each token counts.

Components that scale `weight`, edit `advantage` or leave rows out of the loss (`keep`), and the functions below
them: denominators for ragged rows of your own (a `Batch` has `token_weights`), selectors that turn scores into masks,
factors, and importance weights.
"""

from agentrl_core.weight.denominators import constant, sequence_mean, shares, token_mean, turn_mean
from agentrl_core.weight.difficulty import DifficultyScaled
from agentrl_core.weight.entropy_bonus import EntropyBonus, StepConfidence
from agentrl_core.weight.entropy_scaled import AnswerEntropyScaled, EntropyScaled
from agentrl_core.weight.exponential import AdvantageExponential
from agentrl_core.weight.factors import (
    by_sign,
    conflict_tokens,
    covariance,
    damping,
    entropy_change,
    novelty_bonus,
    probability_shape,
)
from agentrl_core.weight.filtered import DuplicateFilter, FlagFilter, GroupFilter
from agentrl_core.weight.given import ColumnScaled
from agentrl_core.weight.importance import (
    balanced_bounds,
    importance_diagnostics,
    importance_weights,
    second_moment_bound,
    trust_region,
)
from agentrl_core.weight.negatives import LiveRescale, NegativeByConfidence, NegativeBySuccess, SignScaled
from agentrl_core.weight.off_policy import ImportanceWeight, TrustRegion
from agentrl_core.weight.rarity import DurationScaled, Novelty
from agentrl_core.weight.select import above_quantile, max_variance_subset, quota, sample_band, top
from agentrl_core.weight.select_draws import SelectDraws
from agentrl_core.weight.select_tokens import ConflictTokens, SelectTokens
from agentrl_core.weight.token_change import EntropyChange, InputDependency, ProbabilityShaped

__all__ = [
    "AdvantageExponential",
    "AnswerEntropyScaled",
    "ColumnScaled",
    "ConflictTokens",
    "DifficultyScaled",
    "DuplicateFilter",
    "DurationScaled",
    "EntropyBonus",
    "EntropyChange",
    "EntropyScaled",
    "FlagFilter",
    "GroupFilter",
    "ImportanceWeight",
    "InputDependency",
    "LiveRescale",
    "NegativeByConfidence",
    "NegativeBySuccess",
    "Novelty",
    "ProbabilityShaped",
    "SelectDraws",
    "SelectTokens",
    "SignScaled",
    "StepConfidence",
    "TrustRegion",
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
