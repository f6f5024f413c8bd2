"""VerIPO: alternate GRPO with DPO on pairs of rollouts that a verifier selects (arXiv:2505.19000).

    rounds:   GRPO on the outcome
    between:  L = - mean over pairs of log sigmoid(0.1 (x_chosen - x_rejected)),   x = sum of log p - log p_ref

Of the rollouts of a task, those that are right, consistent and long are chosen. Those that are wrong, repeat themselves
or have reasoning that does not lead to their answer are rejected. A judge reports `consistent` and `repetitive`.
`VerifiedPairs` pairs them, and the stage `pairs` trains the batch: `recipe.updates(VerifiedPairs()(batch),
stage="pairs")`. A group without both kinds gives no pair. In later rounds a fifth of the tasks that were always solved
stay in the pool.

Equations:
    Read: the authors' README, the abstract, and notes of others; the paper's text was not read.

    - C1, discard of simple examples: `PoolFilter(below=1.0, spare=0.2, newest=True)`.
    - N1, pairs: `VerifiedPairs`.
    - N2, preference loss: `Preference(beta=0.1)`.
    - N3, group advantage: `GroupRelative`, std with denominator n - 1 and 1e-6 added to it; the sources do not state
      which std.

Differs:
    - Optimizer steps a batch: 512 responses in minibatches of 64 are 8 steps in the rounds of the loop and here; before
      the loop the paper has a stage on texts and images with 4.
    - Clip range: not stated; 0.2 here.
    - Long: not stated; at least the mean length of the group here.
    - Pairs of a task: not stated; here every draw is in at most one pair.
    - Simple tasks that stay: exactly a fifth in the paper, each with probability 0.2 here.

Source: VerIPO: Cultivating Long Reasoning in Video-LLMs via Verifier-Guided Iterative Policy Optimization
(arXiv:2505.19000). Needs: for `VerifiedPairs` the facts `success`, `consistent` and `repetitive`; the reference model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, group, replay
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw
from agentrl_core.loss import Policy, Preference, Train
from agentrl_core.select import ComposedSelector, PoolFilter

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class VerifiedPairs(BatchComponent):
    """Pair long accepted rollouts with rejected ones of their group: draw columns `pair` and `advantage`.

    A draw is chosen (advantage 1) if it is a success, consistent, not repetitive, and at least as long as the mean of
    its group. It is rejected (-1) if it is not a success, not consistent, or repetitive. A draw is in at most one pair;
    draws without a pair or without a verdict have pair -1 and advantage 0.

    Example:
        >>> from agentrl_core.recipes.ver_ipo import VerifiedPairs
        >>> VerifiedPairs().makes
        (draw('advantage'), draw('pair'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (
        draw("success"),
        draw("consistent"),
        draw("repetitive"),
        draw("group_id"),
    )
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("pair"))

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `advantage` and `pair` on draws."""
        rows = Rows(batch, "draw")
        chosen, rejected = self.verdicts(rows)
        better, worse = replay.pairs(
            chosen.astype(np.float64), rows.keys("group_id"), matching="disjoint", valid=chosen | rejected
        )
        pairs, advantages = np.full(len(rows), -1, np.int64), np.zeros(len(rows))
        pairs[better] = pairs[worse] = np.arange(len(better))
        advantages[better], advantages[worse] = 1.0, -1.0
        return rows.write(advantage=advantages).with_columns("draw", pair=pairs)

    @staticmethod
    def verdicts(rows: Rows) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which draws may be chosen, and which are rejected."""
        known = rows.valid.copy()
        for name in ("success", "consistent", "repetitive"):
            known &= rows.is_known(name)
        lengths, groups = rows.values("trained_tokens"), rows.keys("group_id")
        is_long = lengths >= group.statistics(lengths, groups, valid=known).mean[groups]
        acceptable = rows.flags("success") & rows.flags("consistent") & ~rows.flags("repetitive")
        return known & acceptable & is_long, known & ~acceptable


VER_IPO = Recipe(
    name="ver_ipo",
    source="arXiv:2505.19000",
    select=ComposedSelector(pool=PoolFilter(below=1.0, spare=0.2, newest=True)),
    advantage=GroupRelative(),
    loss=(Train(Policy(), minibatches=8), Train(Preference(beta=0.1), stage="pairs")),
)
