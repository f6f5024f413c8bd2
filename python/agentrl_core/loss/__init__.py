"""Phase loss: from log-probs, entropies and the streams of a pack to one number to differentiate.

`Policy` is composed: a ratio (a vector), a clip range (a pair of vectors), a surrogate (a function of both), a mask and
regularisers. The other losses regress (`Regression`), compare (`Preference`, `ListMatch`, ...), imitate, distil a
teacher (`Divergence`), or train a critic (`Value`). Every loss is a pure function of `[N]` vectors,
`Loss.evaluate(tokens)`. It declares the streams that it reads, the rows that must be in one pack (`unit`; not needed
with `Update.gradient_cached`), and whether shared tokens may be folded (`foldable`). `Train` assigns a loss to a model
and a stage. `run_fused`, `fused` and `linear_logprob` compute losses from hidden states without the logits of a batch.
Parts that only one method uses are in its file in `recipes`.
"""

from typing import TYPE_CHECKING

from agentrl_core._util.lazy import lazy
from agentrl_core._util.lazy_torch import torch
from agentrl_core.loss.base import ADVANTAGES, Loss, OverRows, Unit, WeightedLoss, metric_sums
from agentrl_core.loss.combine import Imitation, Sum, function
from agentrl_core.loss.divergence import Divergence
from agentrl_core.loss.inputs import Tokens
from agentrl_core.loss.listwise import GroupLoss, ListMatch, OutcomeClassifier
from agentrl_core.loss.mask import CovarianceMask, InBounds, Mask, TopTokens
from agentrl_core.loss.policy import Policy
from agentrl_core.loss.preference import Preference
from agentrl_core.loss.regression import Regression
from agentrl_core.loss.regulariser import KL, EntropyTerm
from agentrl_core.loss.surrogate import (
    Clip,
    ClipBounds,
    Clipped,
    ClipRange,
    Expert,
    ImportanceRatio,
    Ratio,
    Reinforce,
    Surrogate,
)
from agentrl_core.loss.trained_model import Train
from agentrl_core.loss.value import Value

if TYPE_CHECKING:
    from agentrl_core.loss.chunked_logits import fused as fused
    from agentrl_core.loss.chunked_logits import linear_logprob, run_fused

__all__ = [
    "ADVANTAGES",
    "KL",
    "Clip",
    "ClipBounds",
    "ClipRange",
    "Clipped",
    "CovarianceMask",
    "Divergence",
    "EntropyTerm",
    "Expert",
    "GroupLoss",
    "Imitation",
    "ImportanceRatio",
    "InBounds",
    "ListMatch",
    "Loss",
    "Mask",
    "OutcomeClassifier",
    "OverRows",
    "Policy",
    "Preference",
    "Ratio",
    "Regression",
    "Reinforce",
    "Sum",
    "Surrogate",
    "Tokens",
    "TopTokens",
    "Train",
    "Unit",
    "Value",
    "WeightedLoss",
    "function",
    "linear_logprob",
    "metric_sums",
    "run_fused",
    "torch",
]

__getattr__ = lazy(__name__, dict.fromkeys(("fused", "linear_logprob", "run_fused"), "chunked_logits"))  # imports torch
