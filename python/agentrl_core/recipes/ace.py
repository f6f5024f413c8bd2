"""ACE: penalise a wrong rollout more, the more likely training has made it (arXiv:2602.21420).

Errors that training has made more likely are penalised more than errors of exploration. The weight of a negative
advantage is

    1 + alpha softplus(c),    c = sum over the draw's trained tokens of log pi - log pi_reference.

Advantages and loss are as in GRPO. pi is the policy that sampled the rollout, so the weight does not change during
the update. Annotate `reference_logprob` before the credit is computed. c grows with the length of an answer:
`NegativeByConfidence(at_most=5.0)` bounds the weight, and `length="mean"` takes the mean over tokens instead.

Equations:
    Read: the abstract, and third-party summaries and notes.

    - A1, confidence shift: c, the sum over the trained tokens of an answer.
    - N1, scaled advantage with the maximum: `NegativeByConfidence(kind="relu")`.
    - N2, scaled advantage: `NegativeByConfidence`.
    - N3, base loss: the GRPO loss, `Policy`, with the weight as a factor.

Differs:
    - Alpha: 0.5 to 2 on a public page, 1 here.
    - Clip range, steps per batch and KL: not known; 0.2, 1 and none here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, level_of, option, sum_rows, token
from agentrl_core.loss import Policy

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class NegativeByConfidence(BatchComponent):
    """Penalise draws with a negative advantage more if the policy is more confident of them than its reference.

    weight *= min(1 + alpha g(c), at_most) for negative advantages, with c = log pi - log pi_reference of the draw, in
    nats.

    Args:
        alpha: strength of the penalty; 0 leaves the weights unchanged.
        kind: the function g: `softplus`, ln(1 + e^c), or `relu`, max(c, 0).
        length: c is the `sum` over the trained tokens, or their `mean`.
        at_most: the largest factor; None: no bound.
        logprob: token column of log pi, recorded in the rollout or recomputed.
        reference: token column of log pi_reference.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ace import NegativeByConfidence
        >>> NegativeByConfidence().needs
        (token('advantage'), token('behaviour_logprob'), token('reference_logprob'))
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (token("weight"),)

    alpha: float = option(1.0, at_least=0.0)
    kind: Literal["softplus", "relu"] = "softplus"
    length: Literal["sum", "mean"] = "sum"
    at_most: float | None = option(None, at_least=1.0)
    logprob: str = column_name("behaviour_logprob", level="token")
    reference: str = column_name("reference_logprob", level="token", model="reference")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with scaled `weight`, at the level of the advantage."""
        tokens = Rows(batch, "token")
        known = tokens.known(self.logprob) & tokens.known(self.reference)
        gains = np.where(known, tokens.values(self.logprob) - tokens.values(self.reference), 0.0)
        confidence_shift = sum_rows(gains, tokens.draws, batch.num_draws)
        if self.length == "mean":
            confidence_shift /= np.maximum(sum_rows(known.astype(np.float64), tokens.draws, batch.num_draws), 1.0)
        penalty = np.logaddexp(0.0, confidence_shift) if self.kind == "softplus" else np.maximum(confidence_shift, 0.0)
        factors = np.minimum(1.0 + self.alpha * penalty, np.inf if self.at_most is None else self.at_most)
        rows = Rows(batch, level_of(batch, "advantage", "draw"))
        return rows.scale(np.where(rows.values("advantage") < 0.0, factors[rows.draws], 1.0))


ACE = Recipe(
    name="ace",
    source="arXiv:2602.21420",
    advantage=GroupRelative(),
    weight=NegativeByConfidence(),
    loss=Policy(),
)
