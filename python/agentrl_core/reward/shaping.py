"""Shape the scores of rows: combinations, length penalties, curves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.component.column import key_columns
from agentrl_core.operators import group, keys
from agentrl_core.operators.score_shaping import excess_penalty
from agentrl_core.reward.columns import SCORES

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class CombineReward(BatchComponent):
    """Combine a column x with the score s: s + min(coefficient * x, at_most), s * x, or s if x passes a gate.

    Sources: ARPO arXiv:2505.16282 (`column="reward.format", coefficient=0.5`); FAPO (`column="flawed",
    coefficient=-1.0, only="success"`); SPEAR arXiv:2509.22601 (`column="tool_calls", coefficient=0.1, at_most=1.0`,
    both falling to 0 by a `Schedule`); GDPO's conditioned reward arXiv:2601.05242 (`column="reward.correct",
    kind="require"`).

    Args:
        column: x: a component of the reward (`reward.<name>`), a flag or a count.
        coefficient: for `add`.
        kind: `add`, `multiply`, or `require`: s if x is at least `threshold`, else `otherwise`.
        only: affected draws: `all`, those that had `success`, or `failure`.
        at_most: for `add`: the largest added number; None: any.
        threshold: for `require`.
        otherwise: for `require`.
        level: `draw` (column `score`), or `step` (column `step_score`, which `OutcomeScore(level="step")` creates).

    Raises:
        RecipeError: an option is not possible.

    Example:
        >>> from agentrl_core.reward import CombineReward
        >>> CombineReward(column="reward.format", coefficient=0.5).needs
        (draw('reward.format'), draw('score'))
    """

    phase: ClassVar[str] = "reward"

    column: str = column_name(level="level")
    coefficient: float = 1.0
    kind: Literal["add", "multiply", "require"] = "add"
    only: Literal["all", "success", "failure"] = "all"
    at_most: float | None = None
    threshold: float = 1.0
    otherwise: float = 0.0
    level: Literal["draw", "step"] = "draw"

    def check_options(self) -> None:
        """Allow a bound only for kind `add`."""
        self.require(self.at_most is None or self.kind == "add", "at_most", 'choose kind="add", or give None')

    def own_needs(self) -> Iterable[Column]:
        """Input columns besides `column`: the score, and `success` if `only` needs it."""
        yield SCORES[self.level]
        if self.only != "all":
            yield Column(self.level, "success")

    def own_makes(self) -> Iterable[Column]:
        """Yield the output column: the score, which is overwritten."""
        yield SCORES[self.level]

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new column `score` on draws, or `step_score` on steps."""
        rows, target = Rows(batch, self.level), SCORES[self.level].name
        scores, column = rows.values(target), rows.values(self.column)
        if self.kind == "add":
            part = self.coefficient * column
            fused = scores + (part if self.at_most is None else np.minimum(part, self.at_most))
        elif self.kind == "multiply":
            fused = scores * column
        else:
            gate = np.where(column >= self.threshold, scores, self.otherwise)
            fused = np.where(np.isfinite(scores) & np.isfinite(column), gate, np.nan)
        if self.only != "all":
            of_kind = rows.is_known("success") & (rows.flags("success") == (self.only == "success"))
            fused = np.where(of_kind, fused, scores)
        return rows.write(**{target: fused})


@dataclass(frozen=True)
class LengthPenalty(BatchComponent):
    """Penalise length L: score - coefficient * min(max(L - free, 0) / (full_at - free), at_most).

    The penalty is 0 up to `free` tokens and linear beyond. Sources: DAPO's soft overlong punishment arXiv:2503.14476
    (`free` the longest minus the buffer, `full_at` the longest, `at_most=1.0`); MARS arXiv:2510.15414 (`level="step",
    free=2048, full_at=4085, coefficient=0.5`).

    Args:
        free: tokens without a penalty.
        full_at: length with penalty `coefficient`; above `free`.
        coefficient: the penalty at `full_at`.
        at_most: the largest penalty, in units of `coefficient`; None: any.
        scale_by: `group_mean`: the penalty is multiplied by the mean score of the group.
        only: affected draws: `all`, those that had `success`, or `failure`.
        count: counted tokens: the `trained` ones, or `all` from the first sampled token to the last, including tool
            results.
        level: `draw` (column `score`), or `step` (column `step_score`, which `OutcomeScore(level="step")` creates).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import LengthPenalty
        >>> LengthPenalty(free=3072, full_at=4096).needs
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"

    free: int = option(at_least=0)
    full_at: int = option(above=0)
    coefficient: float = option(1.0, at_least=0)
    at_most: float | None = option(None, above=0)
    scale_by: Literal["none", "group_mean"] = "none"
    only: Literal["all", "success", "failure"] = "all"
    count: Literal["all", "trained"] = "all"
    level: Literal["draw", "step"] = "draw"

    def check_options(self) -> None:
        """Require full_at above free."""
        self.require(self.full_at > self.free, "full_at", f"give a number above free={self.free}")

    def own_needs(self) -> Iterable[Column]:
        """Input columns: the score, and groups or `success` if options need them."""
        yield SCORES[self.level]
        if self.scale_by == "group_mean":
            yield Column(self.level, "group_id")
        if self.only != "all":
            yield Column(self.level, "success")

    def own_makes(self) -> Iterable[Column]:
        """Yield the output column: the score, which is overwritten."""
        yield SCORES[self.level]

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new column `score` on draws, or `step_score` on steps."""
        rows, target = Rows(batch, self.level), SCORES[self.level].name
        scores = rows.values(target)
        penalties = excess_penalty(
            rows.trained if self.count == "trained" else _spans(rows),
            free=self.free,
            full_at=self.full_at,
            coefficient=self.coefficient,
            at_most=self.at_most,
        )
        if self.scale_by == "group_mean":
            groups = rows.keys("group_id")
            penalties = penalties * group.statistics(scores, groups, valid=np.isfinite(scores)).mean[groups]
        if self.only != "all":
            of_kind = rows.is_known("success") & (rows.flags("success") == (self.only == "success"))
            penalties = np.where(of_kind, penalties, 0.0)
        return rows.write(**{target: scores + penalties})


@dataclass(frozen=True)
class GaussianProximity(BatchComponent):
    """Score the proximity to a target: score = exp(-1/2 sum (x / width)^2) of distances x; 1 if all are 0.

    A draw with an unknown distance has no score. Sources: OmniQuality-R arXiv:2510.10609 (`column="error",
    width=0.8`: predicted less true); SSL arXiv:2601.22491 (`column="dx,dy", width=1.0`, in units of the target's size).

    Args:
        column: comma-joined draw columns of distances.
        width: the distance of the score exp(-1/2).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import GaussianProximity
        >>> GaussianProximity(column="dx,dy").needs
        (draw('dx'), draw('dy'))
    """

    phase: ClassVar[str] = "reward"
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    column: str = column_name("error", level="draw")
    width: float = option(1.0, above=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `score` on draws."""
        rows = Rows(batch, "draw")
        distances = np.sum([(rows.values(name) / self.width) ** 2 for name in key_columns(self.column)], axis=0)
        return rows.write(score=np.where(np.isfinite(distances), np.exp(-0.5 * distances), np.nan))


def _spans(rows: Rows) -> NDArray[np.float64]:
    """Return, for each row, the number of tokens from the first sampled one to the last."""
    tokens = Rows(rows.batch, "token")
    within = tokens.within(rows.level)
    positions = group.statistics(tokens.values("position"), within)
    spans = np.zeros(len(rows))
    spans[within] = (positions.most - positions.least + 1.0)[keys.dense(within)]
    return spans
