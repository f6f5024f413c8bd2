"""GTPO: protect tokens that good and bad rollouts share, and drop rollouts of high entropy (arXiv:2508.03772).

If good and bad draws of a group begin or end with the same tokens, the gradients of these tokens oppose each other.
Such tokens have weight 2 in good draws and 0 in bad ones; a token that conflicts from both ends gets the factor twice.
With R a draw's score and H the mean entropy of its tokens,

    L = - 1/G sum_i 1/|o_i| sum_t lambda_it A_i log p_it,    A_i = R_i - mean(R) - 0.1 H_i,    0 if H_i > ln 2.

Draws are classified as good or bad before the entropy is subtracted: draws with R_i = mean(R) neither cause nor have
conflicts, and still lose 0.1 H_i. A draw with A_i = 0 counts in 1/G. The paper applies the threshold only if the first
policy was below it. The public code always applies 0.7, `EntropyGate(at_most=0.7)`, and divides each draw's loss by its
number of conflict tokens, `ConflictTokens(per_count=True)`. Entropies are recorded during the rollout.

Equations:
    Read: the public code with its README, and the abstract.

    - R1, objective: `Reinforce`, whose gradient is the gradient of the ratio at 1; mean over tokens, then completions.
    - R2, filter of entropy: `EntropyGate(at_most=ln 2)`.
    - C1, advantage: `GroupRelative(scale="none")`.
    - C2, conflict tokens: `ConflictTokens`.
    - C3, shaping in the code: `EntropyBonus(coefficient=-0.1)`, with `EntropyGate(at_most=0.7)` as an option.
    - C4, loss in the code: an option, `ConflictTokens(per_count=True)`.

Differs:
    - First policy: according to the README, the filter acts only if the initial policy's entropy is at most ln 2; here
      it always acts.
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
    """Set the advantage of draws with a high mean entropy to 0; they still count in the mean of the loss.

    Args:
        column: token column of entropies in nats.
        at_most: largest mean entropy of a draw's trained tokens at which the draw keeps its advantage.

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
        """Return `batch` with `advantage` set to 0 for draws above the threshold."""
        rows = Rows(batch, level_of(batch, "advantage", "draw"))
        means, known = mean_of_tokens(batch, self.column, "draw")
        unsure = known & (means > self.at_most)
        return rows.write(advantage=np.where(unsure[rows.draws], 0.0, rows.values("advantage")))


@dataclass(frozen=True)
class ConflictTokens(BatchComponent):
    """Scale the weights of tokens that good and bad draws of a group both begin or end with.

    A draw is good if its score is above the mean of its group, and bad if it is below. Positions count the action
    tokens of a draw from its start. A token conflicts if a good and a bad draw both have it at its position, and all
    tokens before it conflict too. Conflicts from the end are found in the same way, with the tokens after it. The
    factor is `positive` or `negative`, and applies twice to a token that conflicts from both ends.

    Args:
        positive: factor in good draws.
        negative: factor in bad draws.
        both_ends: whether to count positions from the end as well as from the start.
        per_count: whether to divide all weights of a draw by the number of its conflict tokens, if it has any.

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
        """Return `batch` with the column `weight` scaled."""
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
