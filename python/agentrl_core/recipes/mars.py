"""MARS: self-play in games, credit for each turn, and a baseline for each seat (arXiv:2510.15414).

    G_t = sum over k >= t of r_k,   A_t = G_t - mean of G over all turns of the same game and player in the batch

One trajectory for each player of a game: its own turns are trained, those of the others are its context. Rewards are
summed first and compared afterwards, so that a long game is not worth less. A turn longer than 2048 tokens loses up to
1/2 for every 2037 tokens more. A game is played once for each group, so the baseline is that of all games of a kind:
the fact `env_tag` names it, and the seat is the agent. The dual bound is 1 + 2 clip.

The public code centres the rewards first, whitens them, sums, subtracts the mean of a player's distinct sums and
whitens again: `advantage=(GroupRelative(column="step_score", level="step", group_by="env_tag,agent", scale="none"),
WhitenedReturns(), DistinctCentred(), GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0,
variance_eps=1e-8))`.

Equations:
    Read: the authors' code, its README, and a port of others, which separates the paper's formulas from the code. The
    paper's text was not read.

    - N1, turn return: `Discounted(column="step_score")`.
    - N2, advantage by player: `GroupRelative(level="step", group_by="env_tag,agent", scale="none")`.
    - C1, reward of a turn: `LengthPenalty(level="step")`; the environment pays the game, and 0.05 for a legal move.
    - C2, centring by role: an option, `GroupRelative(column="step_score", level="step", ...)`.
    - C3, whitening of rewards: an option, `WhitenedReturns`.
    - C4, turn return of the code: an option, `WhitenedReturns`.
    - C5, centring over distinct values: an option, `DistinctCentred`.
    - C6, whitening of advantages: an option, `GroupRelative(level="token", group_by="batch")`.
    - C7, policy loss: `Policy(clip=Clip(dual=1.4))`.
    - C8, aggregation: `Policy("sequence_mean")`.
    - C9, KL term: `KL(0.2)`.

Differs:
    - Returns that are averaged: those of all turns here; the port takes the one of the first turn of each trajectory.
    - Optimizer steps a batch: 384 trajectories by 4 times the number of devices in the code, 1 here. `minibatches`
      makes more; the clip range acts from the second one on.
    - Distinct values: as floating-point numbers in the code; values that agree to 5 decimals are one in
      `DistinctCentred`.

Needs: the fact `env_tag` of trajectories; rewards of steps; the model reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Discounted, GroupRelative, Normalisation
from agentrl_core.component import BatchComponent, Column, Rows, column_name, option, step, token
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.operators.returns import discounted
from agentrl_core.reward import LengthPenalty, OutcomeScore
from agentrl_core.rollout import SelfPlay

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class WhitenedReturns(BatchComponent):
    """Return of each token: the sum of its own and later rewards, which are whitened over the batch's tokens.

    The reward of a turn is the step column `advantage`, at its last trained token; other tokens have 0.

    Args:
        gamma: discount from token to token, 0 to 1.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.mars import WhitenedReturns
        >>> WhitenedReturns().makes
        (token('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (step("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (token("advantage"),)

    gamma: float = option(1.0, at_least=0, at_most=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on tokens."""
        rows = Rows(batch, "token")
        trained = np.flatnonzero(rows.valid)
        steps = rows.within("step")[trained]
        ends = trained[np.append(steps[1:] != steps[:-1], True)[: len(trained)]]
        rewards = np.zeros(len(rows))
        rewards[ends] = np.nan_to_num(Rows(batch, "step").values("advantage"))[rows.within("step")[ends]]
        whitening = Normalisation(eps=0.0, variance_eps=1e-8)
        whitened = whitening.compare(rewards, rows.keys("batch"), valid=rows.valid)
        return rows.write(advantage=discounted(whitened, rows.draws, gamma=self.gamma, mask=rows.valid))


@dataclass(frozen=True)
class DistinctCentred(BatchComponent):
    """Subtract the mean of the distinct values of each group, 0 among them, from the advantages of tokens.

    A value counts once, however many tokens have it, to 5 decimals; 0 is that of the tokens that are not trained.

    Args:
        group_by: key columns of the groups.

    Example:
        >>> from agentrl_core.recipes.mars import DistinctCentred
        >>> DistinctCentred(group_by="agent").needs
        (token('advantage'), draw('agent'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (token("advantage"),)
    makes: ClassVar[tuple[Column, ...]] = (token("advantage"),)

    group_by: str = column_name("agent", level="draw")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `advantage` on tokens."""
        rows = Rows(batch, "token")
        values, groups = rows.values("advantage"), rows.keys(self.group_by)
        found = np.stack([groups[rows.valid], values[rows.valid].round(5)])
        zeros = np.stack([np.unique(groups), np.zeros(len(np.unique(groups)))])
        owners, distinct = np.unique(np.concatenate([found, zeros], axis=1), axis=1)
        owners = owners.astype(np.int64)
        means = np.bincount(owners, weights=distinct) / np.maximum(np.bincount(owners), 1)
        return rows.write(advantage=np.where(rows.valid, values - means[groups], 0.0))


MARS = Recipe(
    name="mars",
    source="arXiv:2510.15414",
    rollout=SelfPlay(agents=("first", "second")),
    reward=(
        OutcomeScore(),
        OutcomeScore(level="step"),
        LengthPenalty(free=2048, full_at=4085, coefficient=0.5, level="step"),
    ),
    advantage=(
        Discounted(column="step_score"),
        GroupRelative(column="advantage", level="step", group_by="env_tag,agent", scale="none"),
    ),
    loss=Policy("sequence_mean", clip=Clip(dual=1.4), kl=KL(0.2)),
)
