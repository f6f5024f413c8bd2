"""EMPG: scale the gradient of each step by the policy's entropy at that step (arXiv:2509.09265).

A confident step learns more from the outcome than an uncertain one, and a step that leads to a confident step is
rewarded. h are the entropies of the steps (means over their trained tokens), scaled to [0, 1] over the batch. With
them,

    A(s) = A g(h_s) + bonus_coefficient f(h_{s+1}),
    g(h) = exp(-gate_coefficient h) / its mean over steps,    f(h) = exp(-future_coefficient h),

minus the mean of A(s) over the steps of the batch; the A on the right is GRPO's. The authors' page sets the gate and
future coefficients to 1 and the bonus coefficient to 0.1. A public port scales by the gates of the batch one after the
other; this is not reproduced. The loss is GRPO's.

Equations:
    Read: notes, and the pseudocode of the authors' page.

    - N1, step entropy: `mean_of_tokens`, over the trained tokens.
    - N2, scaling: `StepConfidence`, with 1e-8.
    - N3, gate: `StepConfidence(gate_coefficient=1.0)`.
    - N4, clarity: `StepConfidence(future_coefficient=1.0)`.
    - N5, advantage: `StepConfidence`.
    - N6, recentring: `StepConfidence(recenter=True)`.

Differs:
    - Optimizer steps a batch: not stated, 1 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, mean_of_tokens, option, step
from agentrl_core.loss import Policy

if TYPE_CHECKING:
    from agentrl_core import Batch

_EPS = 1e-8


@dataclass(frozen=True)
class StepConfidence(BatchComponent):
    """Scale the advantage of a step by the policy's confidence, and reward steps that lead to confident ones.

    The docstring of the module has the formula.

    Args:
        column: token column of entropies in nats.
        gate_coefficient: k of the gate; 0: advantages are not scaled.
        future_coefficient: k', for the entropy of the next step.
        bonus_coefficient: zeta, factor of the bonus; the bonus is 0 at the last step of a draw.
        recenter: whether to subtract the mean over the batch's steps.
        bonus_without_signal: whether steps with advantage 0 get the bonus too.

    Raises:
        RecipeError: an option is out of range, or no entropy is known.

    Example:
        >>> from agentrl_core.recipes.empg import StepConfidence
        >>> StepConfidence().makes
        (step('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (step("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (step("advantage"),)

    column: str = column_name("entropy", level="token")
    gate_coefficient: float = option(1.0, at_least=0.0)
    future_coefficient: float = option(1.0, at_least=0.0)
    bonus_coefficient: float = 0.1
    recenter: bool = True
    bonus_without_signal: bool = True

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new column `advantage` on steps."""
        rows = Rows(batch, "step")
        entropies, known = mean_of_tokens(batch, self.column, "step")
        batch_ids = rows.keys("batch")
        scaled = group.min_max(entropies, batch_ids, eps=_EPS, valid=known)
        gates = group.mean_one(np.exp(-self.gate_coefficient * scaled), batch_ids, valid=known)
        advantages = rows.values("advantage")
        has_next = np.append((rows.draws[1:] == rows.draws[:-1]) & known[1:], False)[: len(rows)]
        if not self.bonus_without_signal:
            has_next &= advantages != 0.0
        clarity = np.where(has_next, np.exp(-self.future_coefficient * np.append(scaled[1:], 0.0)[: len(rows)]), 0.0)
        modulated = np.where(known, advantages * gates, advantages) + self.bonus_coefficient * clarity
        if self.recenter:
            modulated = np.asarray(
                group.normalise(modulated, batch_ids, scale="none", valid=rows.valid, votes_at_least=1)
            )
        return rows.write(advantage=np.where(rows.valid, modulated, 0.0))


EMPG = Recipe(
    name="empg",
    source="arXiv:2509.09265",
    advantage=(GroupRelative(), StepConfidence()),
    loss=Policy(),
)
