"""MM-HELIX (AHPO): imitate an expert only if the policy has too little success of its own (arXiv:2510.08540).

    L = L_GRPO + mean over tasks of xi (- mean over the expert's tokens of log p),   xi = 1[successes of the task < 1]
    L_GRPO = - mean over tasks, draws and tokens of min(r A, clip(r, 0.8, 1.2) A)

An expert's trajectory is a draw of origin `expert` beside those of the policy: it neither votes nor has an advantage,
and without one xi has nothing to act on. How many successes are enough is not given (here 1), nor how both parts are
averaged: the weights below make each a mean over tasks where groups are as large. The training code is not public.

Source: MM-HELIX: Boosting Multimodal Long-Chain Reflective Reasoning (arXiv:2510.08540). Needs: experts' draws; the
fact success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, Where, draw, option, sum_rows
from agentrl_core.loss import Imitation, Policy, Sum

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class SparseGate(BatchComponent):
    """Opens the imitation of a task's experts where too few of its rollouts succeed: draw column `imitation`.

    With n draws in the group and e experts among them, imitation = n / e on experts of a group with fewer than
    `successes`, else 0, and weight *= n / (n - e) on the others: under a mean over draws both are means over tasks.

    Args:
        successes: how many are enough, at least 1.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.mm_helix import SparseGate
        >>> SparseGate().makes
        (draw('imitation'), draw('weight'))
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (draw("success"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("imitation"), draw("weight"))

    successes: int = option(1, at_least=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `imitation` and another `weight`."""
        rows = Rows(batch, "draw")
        groups, expert = rows.keys("group_id"), Where(origin="expert").holds(batch)
        count = int(groups.max(initial=0)) + 1
        experts, draws, won = (
            sum_rows(np.asarray(marked, np.float64), groups, count)[groups]
            for marked in (expert, np.ones(len(rows)), rows.flags("success") & ~expert)
        )
        gate = expert & (won < self.successes)  # what nothing judged counts as no success
        scaled = rows.scale(np.where(expert, 1.0, draws / np.maximum(draws - experts, 1.0)))
        return Rows(scaled, "draw").write(imitation=np.where(gate, draws / np.maximum(experts, 1.0), 0.0))


MM_HELIX = Recipe(
    name="mm_helix",
    source="arXiv:2510.08540",
    advantage=(
        GroupRelative(where=Where(origin="generated")),
        GroupRelative(coefficient=0.0, where=Where(origin="expert")),
    ),
    weight=SparseGate(),
    loss=Sum(Policy("sequence_mean"), Imitation(tokens="imitation")),
)
