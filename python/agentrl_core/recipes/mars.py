"""MARS: self-play in games, credit for each turn, and a baseline for each seat (arXiv:2510.15414).

    G_t = sum over k >= t of r_k,   A_t = G_t - mean of G over all turns of the same game and player in the batch

Each player of a game has one trajectory: the player's own turns are trained, and the other players' turns are context.
Rewards are summed first and compared afterwards, so that a long game is not worth less. A turn longer than 2048 tokens
loses 1/2 for every 2037 further tokens, in proportion. A game is played once per group, so the baseline is the mean
over all games of a kind: the fact `env_tag` names the kind, and the agent is the seat. The dual bound is 1 + 2 clip.

The public code centres the rewards, whitens them, sums them, subtracts the mean of a player's distinct sums, and
whitens again: `advantage=(GroupRelative(column="step_score", level="step", group_by="env_tag,agent", scale="none"),
WhitenedReturns(), DistinctCentred(), GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0,
variance_eps=1e-8))`.

Equations:
    Read: the authors' code, its README, and a port of others, which separates the paper's formulas from the code. The
    paper's text was not read.

    - N1, turn return: `Discounted(column="step_score")`.
    - N2, advantage by player: `GroupRelative(level="step", group_by="env_tag,agent", scale="none")`.
    - C1, reward of a turn: `LengthPenalty(level="step")`; the environment returns the reward of the game, and 0.05 for
      a legal move.
    - C2, centring by role: an option, `GroupRelative(column="step_score", level="step", ...)`.
    - C3, whitening of rewards: an option, `WhitenedReturns`.
    - C4, turn return of the code: an option, `WhitenedReturns`.
    - C5, centring over distinct values: an option, `DistinctCentred`.
    - C6, whitening of advantages: an option, `GroupRelative(level="token", group_by="batch")`.
    - C7, policy loss: `Policy(clip=Clip(dual=1.4))`.
    - C8, aggregation: `Policy("sequence_mean")`.
    - C9, KL term: `KL(0.2)`.

Differs:
    - Returns that are averaged: the returns of all turns here; only the first turn's return of each trajectory in the
      port.
    - Optimizer steps a batch: in the code, 384 trajectories divided by 4 times the number of devices; 1 here.
      `minibatches` increases it; the clip range acts from the second step on.
    - Distinct values: as floating-point numbers in the code; `DistinctCentred` counts values that agree to 5 decimals
      as one.

Needs: the fact `env_tag` of trajectories; rewards of steps; the reference model.
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
    """Compute the return of each token from rewards that are whitened over the batch's tokens.

    The return is the discounted sum of the token's own and later rewards. The reward of a turn is the step column
    `advantage`, at the turn's last trained token; other tokens have reward 0 before whitening.

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
    """Subtract the mean of the distinct values of each group, including 0, from the advantages of tokens.

    Each value, rounded to 5 decimals, counts once, however many tokens have it. 0 is the value of the untrained tokens.

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
        """Return `batch` with a new column `advantage` on tokens."""
        rows = Rows(batch, "token")
        values, groups = rows.values("advantage"), rows.keys(self.group_by)
        observed = np.stack([groups[rows.valid], values[rows.valid].round(5)])
        zeros = np.stack([np.unique(groups), np.zeros(len(np.unique(groups)))])
        owners, distinct = np.unique(np.concatenate([observed, zeros], axis=1), axis=1)
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
