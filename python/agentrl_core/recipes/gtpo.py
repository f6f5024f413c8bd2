"""GTPO: trajectory-based policy optimisation without a reference (arXiv:2508.03772).

Tokens with which good and bad draws of a group both begin or end pull against each other: they weigh 2 in good draws
and 0 in bad ones, a token that conflicts from both ends twice so. With R a draw's score and H the mean entropy of its
tokens,

    L = - 1/G sum_i 1/|o_i| sum_t lambda_it A_i log p_it,    A_i = R_i - mean(R) - 0.1 H_i,    0 if H_i > ln 2.

Which draws are good or bad is asked before the entropy is taken off: draws with R_i = mean(R) neither make a conflict
nor have one, and still lose 0.1 H_i. A draw with A_i = 0 counts in 1/G. The paper has the threshold only where the
first policy was below it; its public code has 0.7 always, `EntropyGate(at_most=0.7)`, and divides each draw's loss by
its number of conflict tokens, `ConflictTokens(per_count=True)`. Entropies are those of the rollout.

Equations:
    Read: the public code with its README, and the abstract.

    - R1, objective: `Reinforce`, whose gradient is that of the ratio at 1; mean over tokens, then completions.
    - R2, filter of entropy: `EntropyGate(at_most=ln 2)`.
    - C1, advantage: `GroupRelative(scale="none")`.
    - C2, conflict tokens: `ConflictTokens`.
    - C3, shaping in the code: `EntropyBonus(coefficient=-0.1)`, with `EntropyGate(at_most=0.7)` as an option.
    - C4, loss in the code: an option, `ConflictTokens(per_count=True)`.

Differs:
    - First policy: by the README the filter acts only if the initial policy's entropy is at most ln 2; here it always
      acts.
    - Entropy: of the current policy in the code, of the rollout here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import EntropyBonus, GroupRelative
from agentrl_core.component import (
    BatchComponent,
    Column,
    Rows,
    column_name,
    draw,
    level_of,
    mean_of_tokens,
    option,
    sum_rows,
    token,
)
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.operators.sequences import conflict_tokens

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class EntropyGate(BatchComponent):
    """Draws of which the policy was too unsure teach nothing, and still count in the mean: their advantage is 0.

    Args:
        column: token column of entropies in nats.
        at_most: the largest mean over a draw's trained tokens that still teaches.

    Raises:
        RecipeError: an option is out of range, or no entropy is known.

    Example:
        >>> from agentrl_core.recipes.gtpo import EntropyGate
        >>> EntropyGate().needs
        (draw('advantage'), token('entropy'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    column: str = column_name("entropy", level="token")
    at_most: float = option(math.log(2.0), at_least=0.0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `advantage`."""
        rows = Rows(batch, level_of(batch, "advantage", "draw"))
        means, known = mean_of_tokens(batch, self.column, "draw")
        unsure = known & (means > self.at_most)
        return rows.write(advantage=np.where(unsure[rows.draws], 0.0, rows.values("advantage")))


@dataclass(frozen=True)
class ConflictTokens(BatchComponent):
    """Tokens that good and bad draws of a group both begin or end with weigh `positive` or `negative`.

    A draw is good above the mean of its group's scores, and bad below. A token conflicts where the same token stands at
    the same place, from the start (or from the end) of the draw's action tokens, in a good and in a bad draw, and so do
    all before (after) it. A token that conflicts from both ends takes the factor twice.

    Args:
        positive: factor in good draws.
        negative: factor in bad ones.
        both_ends: whether places are counted from the end as well as from the start.
        per_count: whether all weights of a draw are divided by how many of its tokens conflict, if any do.

    Example:
        >>> from agentrl_core.recipes.gtpo import ConflictTokens
        >>> ConflictTokens().needs
        (token('token'), draw('group_id'), draw('score'))
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("token"), draw("group_id"), draw("score"))
    makes: ClassVar[tuple[Column, ...]] = (token("weight"),)

    positive: float = 2.0
    negative: float = 0.0
    both_ends: bool = True
    per_count: bool = False

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        draws, tokens = Rows(batch, "draw"), Rows(batch, "token")
        groups = draws.keys("group_id")
        gains = group.normalise(draws.values("score"), groups, scale="none", valid=draws.valid)
        gains = np.where(draws.valid, gains, 0.0)
        prefixes, suffixes = conflict_tokens(
            batch.column("token", "token"), batch.offsets("token")[batch.offsets("step")], groups, gains
        )
        signs = gains[tokens.draws]
        factors = np.where(signs > 0.0, self.positive, np.where(signs < 0.0, self.negative, 1.0))
        weights = np.where(prefixes, factors, 1.0)
        conflicts = prefixes
        if self.both_ends:
            weights *= np.where(suffixes, factors, 1.0)
            conflicts = conflicts | suffixes
        if self.per_count:
            counts = sum_rows(conflicts.astype(np.float64), tokens.draws, len(draws))
            weights /= np.maximum(counts, 1.0)[tokens.draws]
        return tokens.scale(weights)


GTPO = Recipe(
    name="gtpo",
    source="arXiv:2508.03772",
    advantage=(
        GroupRelative(scale="none"),
        EntropyBonus(level="draw", coefficient=-0.1, at_most=None),
        EntropyGate(),
    ),
    weight=ConflictTokens(),
    loss=Policy(clip=None, surrogate=Reinforce(), aggregate="sequence_mean"),
)
