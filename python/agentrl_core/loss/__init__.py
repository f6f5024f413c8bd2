"""Phase loss: from log-probs, entropies and the streams of a pack to one number to differentiate.

`Policy` is composed: a ratio (a vector), a clip range (a pair of vectors), a surrogate (a function of both), a mask and
regularisers. The other losses regress (`Regression`), compare (`Preference`, `ListMatch`, ...), imitate, or train a
critic (`Value`). Every one is a pure function of `[N]` vectors, `Loss.evaluate(tokens)`, and says which streams it
reads, what must lie in one pack (`unit`; with `Update.gradient_cached` nothing must), and whether shared tokens may be
folded (`foldable`). `Train` says which model one is for, and when. `run_fused`, `fused` and `linear_logprob` make them
from hidden states without the logits of a batch. Parts that only one system has are in its file in `recipes`.
"""

from typing import TYPE_CHECKING

from agentrl_core._util.lazy import lazy
from agentrl_core.loss.base import Loss
from agentrl_core.loss.clip import Clip, ClipBounds, ClipRange, TokenClip
from agentrl_core.loss.combine import Function, Imitation, Sum, function
from agentrl_core.loss.listwise import ListMatch, OutcomeClassifier
from agentrl_core.loss.mask import CovarianceMask, InBounds, Mask, TopTokens
from agentrl_core.loss.policy import Policy
from agentrl_core.loss.preference import Preference
from agentrl_core.loss.ratio import ImportanceRatio, Ratio
from agentrl_core.loss.regression import Regression
from agentrl_core.loss.regulariser import KL, EntropyTerm
from agentrl_core.loss.surrogate import Clipped, Expert, Reinforce, Surrogate
from agentrl_core.loss.tokens import Tokens
from agentrl_core.loss.train import Train
from agentrl_core.loss.value import Value, expected_value, soft_minimum

if TYPE_CHECKING:
    from agentrl_core.loss.linear import FusedOutput, fused, linear_logprob, run_fused

__all__ = [
    "KL",
    "Clip",
    "ClipBounds",
    "ClipRange",
    "Clipped",
    "CovarianceMask",
    "EntropyTerm",
    "Expert",
    "Function",
    "FusedOutput",
    "Imitation",
    "ImportanceRatio",
    "InBounds",
    "ListMatch",
    "Loss",
    "Mask",
    "OutcomeClassifier",
    "Policy",
    "Preference",
    "Ratio",
    "Regression",
    "Reinforce",
    "Sum",
    "Surrogate",
    "TokenClip",
    "Tokens",
    "TopTokens",
    "Train",
    "Value",
    "expected_value",
    "function",
    "fused",
    "linear_logprob",
    "run_fused",
    "soft_minimum",
]

_OF_TORCH = ("FusedOutput", "fused", "linear_logprob", "run_fused")
__getattr__ = lazy(__name__, dict.fromkeys(_OF_TORCH, "linear"))  # imports torch
