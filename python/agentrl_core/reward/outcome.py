"""Scores from outcomes, and draws that are left out: those without a score, and surplus failures of a group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.operators import group
from agentrl_core.operators.score_shaping import add_noise
from agentrl_core.reward.columns import IDENTITY, SCORES, identities

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class OutcomeScore(BatchComponent):
    """Set the score from the environment's reward, or to a fixed number for success or failure.

    If `success` or `failure` is set, draws that succeeded or failed score that number.
    W-REINFORCE (arXiv:2506.01347) is `success=0.1, failure=-1.0`; its PSR and NSR are `failure=0.0` and `success=0.0`.
    A draw with a NaN score neither votes in a statistic nor counts in a denominator.

    Args:
        success: score of a success; None: its reward.
        failure: score of a failure; None: its reward.
        level: `draw`: the trajectory's reward (column `score`); `step`: the reward of each step (column `step_score`).

    Example:
        >>> from agentrl_core.reward import OutcomeScore
        >>> OutcomeScore().needs, OutcomeScore().makes
        ((draw('reward'),), (draw('score'),))
    """

    phase: ClassVar[str] = "reward"

    success: float | None = None
    failure: float | None = None
    level: Literal["draw", "step"] = "draw"

    def own_needs(self) -> Iterable[Column]:
        """Input columns: the reward, and `success` if options need it."""
        yield Column(self.level, "reward")
        if self.success is not None or self.failure is not None:
            yield Column(self.level, "success")

    def own_makes(self) -> Iterable[Column]:
        """Yield the output column: the score at `level`."""
        yield SCORES[self.level]

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws, or `step_score` on steps."""
        rows = Rows(batch, self.level)
        scores = rows.values("reward")
        if self.success is not None or self.failure is not None:
            adjusted = np.where(
                rows.flags("success"),
                scores if self.success is None else self.success,
                scores if self.failure is None else self.failure,
            )
            scores = np.where(np.isfinite(scores) & rows.is_known("success"), adjusted, np.nan)
        return rows.write(**{SCORES[self.level].name: scores})


@dataclass(frozen=True)
class Unscored(BatchComponent):
    """Remove the score of flagged draws: score = NaN, so that they neither vote nor are trained.

    Use `weight.FlagFilter` for draws that vote but are not trained. Source: a judge that failed in CM2,
    arXiv:2602.12268 (`flags="judge_failed"`).

    Args:
        flags: comma-joined names of columns, in which numbers other than 0 mark a problem, or `env.StepFlag`s of steps
            in lower case. A draw is flagged if one of its rows is.
        level: level of these columns.

    Raises:
        RecipeError: `flags` is empty.

    Example:
        >>> from agentrl_core.reward import Unscored
        >>> Unscored(flags="judge_failed").needs
        (draw('score'), step('judge_failed'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    flags: str = column_name("truncated", level="level")
    level: Literal["draw", "step"] = "step"

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new column `score` on draws."""
        draws = Rows(batch, "draw")
        flagged = Rows(batch, self.level).flagged(self.flags)
        return draws.write(score=np.where(flagged, np.nan, draws.values("score")))


@dataclass(frozen=True)
class DropSurplus(BatchComponent):
    """Remove scores of random draws below their group's mean, until these are no more than the other draws.

    A draw below its group's mean is a failure here. Removed draws neither vote nor are trained, so the group's mean
    rises. The choice depends on `seed`, the iteration and the trajectories. Source: RED-Drop, arXiv:2509.24203.

    Args:
        seed: seed of the choice.

    Raises:
        RecipeError: the seed is negative.

    Example:
        >>> from agentrl_core.reward.outcome import DropSurplus
        >>> DropSurplus().makes
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("group_id"), *IDENTITY)
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    seed: int = option(0, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new column `score` on draws."""
        rows = Rows(batch, "draw")
        scores, groups = rows.values("score"), rows.keys("group_id")
        means = group.statistics(scores, groups, valid=rows.valid).mean[groups]
        failures = rows.valid & (scores < means)
        count = int(groups.max()) + 1 if len(groups) else 0
        successes = np.bincount(groups[rows.valid & ~failures], minlength=count)
        chances = add_noise(np.zeros(len(rows)), ids=identities(batch), seed=self.seed, amplitude=1.0)
        places = group.rank(chances, groups, valid=failures)
        return rows.write(score=np.where(failures & (places >= successes[groups]), np.nan, scores))
