"""A bonus for exploring as much as a task is difficult."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component.component import Column, StatefulComponent
from agentrl_core.component.rows import Rows, needed, sums
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

# By difficulty: easy, medium, hard.
_MARGIN = np.array([0.15, 0.25, 0.35])
_KNEE = np.array([2.0, 3.0, 4.0])
_SOFTNESS = np.array([2.0, 2.5, 3.0])
_REACH = np.array([1.0, 1.0, 1.2])
_CONSOLATION = np.array([0.6, 0.8, 1.0])
_HARD = 2
_MOST_STRENGTH = 2.0
_QUANTILE = 0.95


@dataclass(frozen=True)
class ExplorationEffort(StatefulComponent):
    """score + e: what a draw explored, held against what draws of tasks as difficult explore.

    A trained token explores if the mean entropy W of the `width` trained tokens from it on reaches a threshold, which
    follows the median over draws of the 0.95-quantile of W; N is how many of a draw's tokens do. By the share of draws
    of its group that succeeded, a draw is easy (at least `easy`), medium (at least `medium`) or hard. With the target T
    of its difficulty, d = N - T, M = max(1, f T), f = .15, .25, .35 (easy, medium, hard), the knee k = 2, 3, 4, the
    softness q = 2, 2.5, 3, cap = strength * (1, 1, 1.2), sigma the sigmoid and h(x) = x^2 / (2 k) up to k, then
    x - k / 2:

    - easy success: e = -min(cap, cap h(max(d - M, 0)) / (M + k)); medium success: the same with |d| for d;
    - hard success: cap sigma((d + M) / q) where d >= -M, else -min(cap, 0.5 cap h(-d - M) / (M + k));
    - failure: cap sigma(max(d - M, 0) / q), times 0.6 if easy and 0.8 if medium.

    Afterwards strength += rate * (mean N - T) of each difficulty, with the other sign for hard, within [0, 2]. Source:
    ARES, arXiv:2510.08457. Its public code begins the windows after the token.

    Draws without a score, and those without a known entropy, neither vote nor change.

    Args:
        column: token column of entropies in nats.
        trigger: token column of 0 and 1: only these tokens can explore; empty: all.
        width: of the windows, in tokens, at least 1.
        easy: 0 to 1.
        medium: 0 to `easy`.
        momentum: how slowly threshold and targets follow the batches, 0 to 1. The first batch reads its own.
        target: T is `lagged`: the mean N of the batches before, or that of this `batch` (the public code), with which
            strengths hardly move.
        strength: of the first batch, 0 to 2.
        rate: at least 0.
        consolation: what a failure gets that did not explore more than others: half of the above (`half`, sigma(0), as
            published) or nothing (`none`: sigma - 1/2).

    Raises:
        RecipeError: an option is out of range, or no entropy is known.

    Example:
        >>> from agentrl_core.reward import ExplorationEffort
        >>> ExplorationEffort().makes
        (('draw', 'score'), ('draw', 'exploring_tokens'))
    """

    phase: ClassVar[str] = "reward"

    column: str = "entropy"
    trigger: str = ""
    width: int = 4
    easy: float = 2 / 3
    medium: float = 1 / 3
    momentum: float = 0.99
    target: Literal["lagged", "batch"] = "lagged"
    strength: float = 0.5
    rate: float = 0.05
    consolation: Literal["half", "none"] = "half"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.width >= 1, "width", "give a number of at least 1")
        for option in ("easy", "momentum"):
            self.require(0.0 <= getattr(self, option) <= 1.0, option, "give a number from 0 to 1")
        self.require(0.0 <= self.medium <= self.easy, "medium", f"give a number from 0 to easy={self.easy}")
        self.require(0.0 <= self.strength <= _MOST_STRENGTH, "strength", "give a number from 0 to 2")
        self.require(self.rate >= 0.0, "rate", "give a number of at least 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Entropies, scores, and whose draws succeeded."""
        tokens = (self.column, self.trigger) if self.trigger else (self.column,)
        return (*needed("token", *tokens), *needed("draw", "score", "success", "group_id"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score again, and N."""
        return needed("draw", "score", "exploring_tokens")

    def initial_state(self) -> dict[str, Any]:
        """Neither a threshold nor targets; equal strengths."""
        return {"threshold": None, "targets": [None] * 3, "strengths": [self.strength] * 3}

    def advance(self, batch: Batch, state: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Return `batch` with another `score` on draws and the column `exploring_tokens`, and the next state."""
        rows = Rows(batch, "draw")
        counts, known, threshold = self._explored(batch, state["threshold"])
        known &= rows.valid
        won, groups = rows.flags("success"), rows.keys("group_id")
        share = np.nan_to_num(group.statistics(won.astype(np.float64), groups, valid=rows.valid).mean, nan=0.0)[groups]
        difficulty = np.where(share >= self.easy, 0, np.where(share >= self.medium, 1, _HARD)).astype(np.uint32)
        own = np.array(
            [
                counts[known & (difficulty == kind)].mean() if (known & (difficulty == kind)).any() else np.nan
                for kind in range(3)
            ]
        )
        past = np.array([np.nan if target is None else target for target in state["targets"]])
        first = np.isnan(past)
        aims = np.where(first if self.target == "lagged" else ~np.isnan(own), own, past)
        strengths = np.array(state["strengths"])
        bonus = self._bonus(counts, np.nan_to_num(aims)[difficulty], strengths[difficulty], difficulty, won)
        score = rows.values("score")
        batch = rows.write(
            score=np.where(known, score + bonus, score), exploring_tokens=np.where(known, counts, np.nan)
        )
        drift = np.nan_to_num(own - aims) * np.array([1.0, 1.0, -1.0])
        follow = np.where(first, own, self.momentum * past + (1.0 - self.momentum) * own)
        following = np.where(np.isnan(own), past, follow)
        return batch, {
            "threshold": threshold,
            "targets": [None if np.isnan(target) else float(target) for target in following],
            "strengths": np.clip(strengths + self.rate * drift, 0.0, _MOST_STRENGTH).tolist(),
        }

    def _explored(
        self, batch: Batch, threshold: float | None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], float | None]:
        """N of each draw, whether it is known, and the next threshold."""
        tokens = Rows(batch, "token")
        counted = tokens.known(self.column)
        draws = tokens.draws[counted]
        lengths = np.bincount(draws, minlength=batch.num_draws)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        window = _core.reward_window_means(tokens.values(self.column)[counted], offsets, self.width)
        there = np.flatnonzero(lengths)
        if not len(there):
            return np.zeros(batch.num_draws), lengths > 0, threshold
        high = group.quantile(window, draws, _QUANTILE)
        own = float(group.quantile(high, np.zeros(len(high), np.uint32), 0.5)[0])
        explores = window >= (own if threshold is None else threshold)
        if self.trigger:
            explores &= tokens.flags(self.trigger)[counted]
        following = own if threshold is None else self.momentum * threshold + (1.0 - self.momentum) * own
        return sums(explores.astype(np.float64), draws, batch.num_draws), lengths > 0, following

    def _bonus(
        self,
        counts: NDArray[np.float64],
        target: NDArray[np.float64],
        strength: NDArray[np.float64],
        difficulty: NDArray[np.uint32],
        won: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        """The bonus e of each draw."""
        knee, softness, cap = _KNEE[difficulty], _SOFTNESS[difficulty], strength * _REACH[difficulty]
        beyond = counts - target
        margin = np.maximum(1.0, _MARGIN[difficulty] * target)

        def price(excess: NDArray[np.float64], part: float) -> NDArray[np.float64]:
            bent = np.where(excess <= knee, excess**2 / (2.0 * knee), excess - knee / 2.0)
            return np.asarray(-np.minimum(cap, part * cap * bent / (margin + knee)))

        more = np.maximum(beyond - margin, 0.0)
        either = np.maximum(np.abs(beyond) - margin, 0.0)
        hard = np.where(
            beyond >= -margin,
            cap * _sigmoid((beyond + margin) / softness),
            price(np.maximum(-beyond - margin, 0.0), 0.5),
        )
        success = np.where(difficulty == 0, price(more, 1.0), np.where(difficulty == 1, price(either, 1.0), hard))
        least = 0.0 if self.consolation == "half" else 0.5
        failure = (_sigmoid(more / softness) - least) * cap * _CONSOLATION[difficulty]
        return np.where(won, success, failure)


def _sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1.0 + np.tanh(0.5 * values))
