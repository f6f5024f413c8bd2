"""Phase loss: from log-probs, entropies and the streams of a pack to one number to differentiate.

`Policy` is composed: a ratio (a vector), bounds (a pair of vectors), a surrogate (a function of both) and regularisers.
The other losses regress (`Regression`), compare (`Preference`, `ListMatch`, ...), imitate, or train a critic (`Value`).
Every one is a pure function of `[N]` vectors, `Loss.evaluate(tokens)`, and says which streams it reads, what must lie
in one pack (`unit`; with `Update.together` nothing must), and whether shared tokens may be folded (`foldable`). `Train`
says which model one is for, and when. `fused` and `linear_logprob` make these vectors from hidden states without the
logits of a batch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from agentrl_core.loss.base import Loss
from agentrl_core.loss.bounds import (
    BalancedClip,
    BoundProvider,
    Bounds,
    Clip,
    EntropyClip,
    ProbabilityClip,
    SecondMomentClip,
    TokenClip,
    normalised_entropy,
)
from agentrl_core.loss.combine import Function, Imitation, Sum, function
from agentrl_core.loss.controller import Controller, Doubling, Exponential, Proportional
from agentrl_core.loss.gate import (
    CovarianceClip,
    Divergence,
    EntropyAdvantage,
    EntropyChange,
    Gate,
    InBounds,
    TopShare,
)
from agentrl_core.loss.listwise import (
    LengthDecoupled,
    ListMatch,
    OutcomeClassifier,
    TrajectorySoftmax,
    differential_information,
)
from agentrl_core.loss.policy import Policy
from agentrl_core.loss.preference import PairwiseProximal, Preference
from agentrl_core.loss.ratio import Mixture, PrefixMinimum, Ratio, RatioProvider, StratifiedRatio
from agentrl_core.loss.regression import Regression
from agentrl_core.loss.regulariser import (
    KL,
    CovarianceEntropy,
    EntropyAnchor,
    EntropyBand,
    EntropyTerm,
)
from agentrl_core.loss.surrogate import (
    Clipped,
    Expert,
    Flipped,
    GeometricMean,
    LogClipped,
    Quadratic,
    Reinforce,
    Smooth,
    Surrogate,
)
from agentrl_core.loss.tokens import Segments, Tokens
from agentrl_core.loss.train import Train
from agentrl_core.loss.value import Value, expected_value, soft_minimum

if TYPE_CHECKING:
    from agentrl_core.loss.linear import FusedOutput, fused, linear_logprob

__all__ = [
    "KL",
    "BalancedClip",
    "BoundProvider",
    "Bounds",
    "Clip",
    "Clipped",
    "Controller",
    "CovarianceClip",
    "CovarianceEntropy",
    "Divergence",
    "Doubling",
    "EntropyAdvantage",
    "EntropyAnchor",
    "EntropyBand",
    "EntropyChange",
    "EntropyClip",
    "EntropyTerm",
    "Expert",
    "Exponential",
    "Flipped",
    "Function",
    "FusedOutput",
    "Gate",
    "GeometricMean",
    "Imitation",
    "InBounds",
    "LengthDecoupled",
    "ListMatch",
    "LogClipped",
    "Loss",
    "Mixture",
    "OutcomeClassifier",
    "PairwiseProximal",
    "Policy",
    "Preference",
    "PrefixMinimum",
    "ProbabilityClip",
    "Proportional",
    "Quadratic",
    "Ratio",
    "RatioProvider",
    "Regression",
    "Reinforce",
    "SecondMomentClip",
    "Segments",
    "Smooth",
    "StratifiedRatio",
    "Sum",
    "Surrogate",
    "TokenClip",
    "Tokens",
    "TopShare",
    "Train",
    "TrajectorySoftmax",
    "Value",
    "differential_information",
    "expected_value",
    "function",
    "fused",
    "linear_logprob",
    "normalised_entropy",
    "soft_minimum",
]

_OF_TORCH = ("FusedOutput", "fused", "linear_logprob")  # their module imports torch


def __getattr__(name: str) -> Any:
    if name not in _OF_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.linear"), name)
