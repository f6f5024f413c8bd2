"""MM-HELIX (AHPO): imitate an expert only if the policy has too few successes of its own (arXiv:2510.08540).

    L = xi L_off + L_on,   xi = 1[successes of the task < 1]
    L_off = - mean over the expert's tokens of log p,   L_on = - mean over the rollouts' tokens of min(r A, clip(r) A)

An expert's trajectory is a draw of origin `expert` in the group of the policy's draws: it neither votes nor has an
advantage. Each term has the denominator of its own rows. The training code is not public.

Equations:
    Read: the paper's section 3.3.

    - 1, off-policy loss: `Imitation("sequence_mean")`, mean over the experts' draws.
    - 2, on-policy loss: `Policy`, token mean over the draws of origin `generated`.
    - 3, advantage: `GroupRelative` of the draws of origin `generated`, std with n - 1.
    - 4, sum: `Sum`, each term with its own rows.
    - 5, sum with one denominator Z: left out: it contradicts 4, and Z is not defined.
    - 6, gate: `SparseGate`.

Differs:
    - Number of successes that is enough: not given; 1 here. `SparseGate(successes=2)` requires two.
    - Several tasks in a step: the paper defines the loss of one task; here L_on is one token mean over all tasks, and
      L_off one mean over all experts.
    - Clip range: not given; 0.2 here.

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

_GENERATED, _EXPERT = Where(origin="generated"), Where(origin="expert")


@dataclass(frozen=True)
class SparseGate(BatchComponent):
    """Imitate expert rollouts of a group only if too few of the policy's succeed: draw column `imitation`.

    The column is 1 for experts of a group with fewer than `successes` successful rollouts, else 0. A rollout with
    unknown success does not count as a success.

    Args:
        successes: number of successes that switches the imitation off, at least 1.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.mm_helix import SparseGate
        >>> SparseGate().makes
        (draw('imitation'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (draw("success"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("imitation"),)

    successes: int = option(1, at_least=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `imitation`."""
        rows = Rows(batch, "draw")
        groups, expert = rows.keys("group_id"), _EXPERT.holds(batch)
        policy_success = np.asarray(rows.flags("success") & ~expert, np.float64)
        successes = sum_rows(policy_success, groups, int(groups.max(initial=0)) + 1)[groups]
        return rows.write(imitation=expert & (successes < self.successes))


MM_HELIX = Recipe(
    name="mm_helix",
    source="arXiv:2510.08540",
    advantage=(
        GroupRelative(where=_GENERATED),
        GroupRelative(coefficient=0.0, where=_EXPERT),
    ),
    weight=SparseGate(),
    loss=Sum(Policy(), Imitation(tokens="imitation"), first_where=_GENERATED, second_where=_EXPERT),
)
