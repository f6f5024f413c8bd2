"""ARES: explore more on hard tasks and less on easy ones, by a bonus relative to tasks of similar difficulty.

A trained token explores if W, the mean entropy of the `width` trained tokens that begin with it, reaches a threshold:
the mean over the batch's draws of the 0.95-quantile of their token entropies. N is the number of exploring tokens of a
draw. A draw is easy, medium or hard if the success rate of its group is at least 2/3, at least 1/3, or less. The target
T is the mean N of the draws of this difficulty in the previous batch. A bonus e is added to the score of failed draws
only:

    e = - lambda g,   lambda = max(0, (mean N - T) / (var N + 1e-6)),   g = max(d, 0) easy, |d| medium, max(-d, 0) hard

with d = N - T, and the mean and variance of N over the draws of this difficulty. Groups with a mean score outside
[0.01, 0.99] leave the loss. The KL penalty is relaxed at exploring tokens. A batch has 4 optimizer steps. Two
mechanisms of the paper are left out: rollouts do not branch at exploring tokens, and the KL penalty has no controller,
because the paper does not give its targets and rate.

The public code has another bonus (`kind="code"`). Its threshold (`threshold="windows"`) is a moving average of the
median over draws of the 0.95-quantile of W. Let M = max(1, f T). For easy, medium and hard draws, f = .15, .25, .35,
the knee k = 2, 3, 4, the softness q = 2, 2.5, 3, and cap = coefficient * (1, 1, 1.2). With sigma the sigmoid, and h(x)
= x^2 / (2 k) up to k, then x - k / 2, the bonus is:

- easy success: e = -min(cap, cap h(max(d - M, 0)) / (M + k)); medium success: the same with |d| in place of d;
- hard success: e = cap sigma((d + M) / q) if d >= -M, else -min(cap, 0.5 cap h(-d - M) / (M + k));
- failure: e = cap sigma(max(d - M, 0) / q), times 0.6 if easy and 0.8 if medium.

After each batch, coefficient += step_size * (mean N - T) for each difficulty, with the opposite sign for hard draws,
within [0, 2].

Equations:
    Read: the paper's section 3.2 and its appendices A to J, and the public code of the reward.

    - 3.2.1, threshold: `ExplorationEffort(threshold="tokens")`.
    - 3.2.1b, branching: left out: neither the code nor algorithm 1 branches;
      `ARES.replace(rollout=ettrl.TokenForks(width=4))` adds branches.
    - 3.2.2a, target: `ExplorationEffort(target="lagged", momentum=0.0)`.
    - 3.2.2b, multiplier: `ExplorationEffort(kind="paper")`.
    - 3.2.2c, deviation: the same.
    - 3.2.2d, reward: the same.
    - 1, KL weight: `RelaxedPenalty`.
    - 2, objective: `Policy("sequence_mean")`.
    - A, filter: `GroupFilter(column="score", band=Band(std_above=None, at_least=0.01, at_most=0.99))`; not computed:
      the test case of the recipe covers it.
    - F7, count: `ExplorationEffort`, with W over the token and the tokens after it.
    - F24, KL controller: left out: the paper gives neither its targets nor its rate and bounds.
    - G, difficulty: `ExplorationEffort(easy=2/3, medium=1/3)`, the same classes for groups of 8 draws; not computed:
      the test case of the recipe covers it.
    - C1, reward of the code, right: `ExplorationEffort(kind="code")`.
    - C2, reward of the code, wrong: the same; with `consolation="none"`, failed draws get no bonus up to N = T + M.

Differs:
    - Target: with the mean N of the same batch as the target, the multiplier would be 0; here the target is the mean N
      of the previous batch. The code uses the same batch.
    - Token bonus of algorithm 1 (lines 9 to 14): left out: section 3.2 has none, and the paper does not define its
      function.
    - Token list: appendix H and the code count only the tokens of a given list; mark such tokens in a column and pass
      it as `trigger`.
    - beta and rho: not given; here 0.01 for every difficulty, and 0.5 at exploring tokens. `RelaxedPenalty(easy=...,
      hard=...)` weighs difficulties separately.
    - Windows of the code begin after the token. Width of the windows: not given; 4 here.
    - Clip range: not given; 0.2 here.

Source: arXiv:2510.08457.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import (
    BatchComponent,
    Column,
    IterationRecord,
    Rows,
    StatefulComponent,
    column_name,
    draw,
    option,
    sum_rows,
    token,
)
from agentrl_core.loss import KL, Policy
from agentrl_core.operators.sequences import window_means
from agentrl_core.reward import OutcomeScore
from agentrl_core.select import Band
from agentrl_core.weight import GroupFilter

if TYPE_CHECKING:
    from agentrl_core import Batch

# One value for each difficulty: easy, medium, hard.
_MARGIN = np.array([0.15, 0.25, 0.35])
_KNEE = np.array([2.0, 3.0, 4.0])
_SOFTNESS = np.array([2.0, 2.5, 3.0])
_REACH = np.array([1.0, 1.0, 1.2])
_CONSOLATION = np.array([0.6, 0.8, 1.0])
_HARD = 2
_LARGEST_COEFFICIENT = 2.0
_QUANTILE = 0.95


@dataclass(frozen=True)
class ExplorationEffort(StatefulComponent):
    """Add to a draw's score a bonus e, which may be negative, for how its exploration fits its task's difficulty.

    The module has the formula of e. Draws without a score, a known success or a known entropy keep their score, and do
    not count in the statistics of N.

    Args:
        column: token column of entropies in nats.
        trigger: token column of 0 and 1: only tokens with 1 can explore; empty: all tokens can.
        width: length of a window, in tokens.
        easy: smallest success rate of an easy task.
        medium: smallest success rate of a medium task; at most `easy`.
        momentum: weight of the old value in the moving averages of the targets, and of the threshold of `windows`. The
            first batch uses its own values.
        threshold: `tokens` (the paper): the mean over the batch's draws of the 0.95-quantile of their entropies.
            `windows` (the public code): the median over draws of the same quantile of their windows W, as a moving
            average over batches.
        target: T is a moving average of the mean N of earlier batches (`lagged`), or the mean N of the same `batch`
            (the public code).
        coefficient: coefficient of each difficulty in the first batch.
        step_size: how fast coefficients change.
        kind: formula of e: that of the `paper`, or of the public `code`; see the module.
        consolation: for kind `code`: bonus of a failed draw with N <= T + M. It is half of the largest bonus (`half`:
            sigma(0), as published), or nothing (`none`: sigma - 1/2 in place of sigma).

    Raises:
        RecipeError: an option is out of range, or no entropy is known.

    Example:
        >>> from agentrl_core.recipes.ares import ExplorationEffort
        >>> ExplorationEffort().makes
        (draw('score'), draw('exploring_tokens'), token('exploring'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("success"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"), draw("exploring_tokens"), token("exploring"))

    column: str = column_name("entropy", level="token")
    trigger: str = column_name("", level="token", optional=True)
    width: int = option(4, at_least=1)
    easy: float = option(2 / 3, at_least=0, at_most=1)
    medium: float = option(1 / 3, at_least=0)
    momentum: float = option(0.99, at_least=0, at_most=1)
    threshold: Literal["tokens", "windows"] = "windows"
    target: Literal["lagged", "batch"] = "lagged"
    coefficient: float = option(0.5, at_least=0, at_most=_LARGEST_COEFFICIENT)
    step_size: float = option(0.05, at_least=0)
    consolation: Literal["half", "none"] = "half"
    kind: Literal["paper", "code"] = "code"

    def check_options(self) -> None:
        """Check that the smallest success rate of medium tasks is not above that of easy tasks."""
        self.require(self.medium <= self.easy, "medium", f"give a number from 0 to easy={self.easy}")

    def initial_state(self) -> dict[str, Any]:
        """Return a state without threshold and targets, and with equal coefficients."""
        return {"threshold": None, "targets": [None] * 3, "coefficients": [self.coefficient] * 3}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        """Return `batch` with `score` and `exploring_tokens` on draws, and `exploring` on tokens."""
        rows = Rows(batch, "draw")
        effort = self._explored(batch, state)
        bonuses = self._bonus(effort, np.array(state["coefficients"]))
        scores = rows.values("score")
        new_batch = rows.write(
            score=np.where(effort.known, scores + bonuses, scores),
            exploring_tokens=np.where(effort.known, effort.counts, np.nan),
        )
        return Rows(new_batch, "token").write(exploring=effort.explores)

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        """Return the next state: update the moving averages of threshold and targets, and the coefficients."""
        effort = self._explored(closed.batch, state)
        drifts = np.nan_to_num(effort.means - effort.aims) * np.array([1.0, 1.0, -1.0])
        coefficients = np.clip(np.array(state["coefficients"]) + self.step_size * drifts, 0.0, _LARGEST_COEFFICIENT)
        old_targets = np.array(state["targets"], dtype=np.float64)
        targets = np.where(np.isnan(effort.means), old_targets, self._followed(old_targets, effort.means))
        threshold = state["threshold"]
        if effort.threshold is not None:
            threshold = effort.threshold if threshold is None else float(self._followed(threshold, effort.threshold))
        return {
            "threshold": threshold,
            "targets": [None if np.isnan(target) else float(target) for target in targets],
            "coefficients": coefficients.tolist(),
        }

    def _followed(self, past: Any, new: Any) -> Any:
        """Return the moving average of an old and a new value; the new value if there is no old one."""
        return np.where(np.isnan(past), new, self.momentum * past + (1.0 - self.momentum) * new)

    def _explored(self, batch: Batch, state: dict[str, Any]) -> _Exploration:
        """Return how much the draws of a batch explore, by the threshold and the targets of the state."""
        rows = Rows(batch, "draw")
        explores, counts, known, threshold = self._counts(batch, state["threshold"])
        judged = rows.valid & rows.is_known("success")
        known &= judged
        won, groups = rows.flags("success"), rows.keys("group_id")
        shares = group.statistics(won.astype(np.float64), groups, valid=judged).mean[groups]
        shares = np.nan_to_num(shares, nan=0.0)
        difficulty = np.where(shares >= self.easy, 0, np.where(shares >= self.medium, 1, _HARD))
        votes = np.bincount(difficulty[known], minlength=3)
        totals = np.bincount(difficulty[known], weights=counts[known], minlength=3)
        means = np.divide(totals, votes, out=np.full(3, np.nan), where=votes > 0)
        deviation = np.where(known, counts - np.nan_to_num(means)[difficulty], 0.0)
        spreads = np.bincount(difficulty, weights=deviation**2, minlength=3) / np.maximum(votes, 1)
        old_targets = np.array(state["targets"], dtype=np.float64)
        uses_means = np.isnan(old_targets) if self.target == "lagged" else ~np.isnan(means)
        aims = np.where(uses_means, means, old_targets)
        return _Exploration(explores, counts, known, difficulty, won, means, spreads, aims, threshold)

    def _counts(
        self, batch: Batch, threshold: float | None
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.bool_], float | None]:
        """Return which tokens explore, their number in each draw, whether it is known, and this batch's threshold."""
        tokens = Rows(batch, "token")
        counted = tokens.known(self.column)
        draws = tokens.draws[counted]
        lengths = np.bincount(draws, minlength=batch.num_draws)
        explores = np.zeros(len(tokens), np.bool_)
        if not lengths.any():
            return explores, np.zeros(batch.num_draws), lengths > 0, None
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        entropies = tokens.values(self.column)[counted]
        windows = window_means(entropies, offsets, self.width)
        if self.threshold == "tokens":
            batch_threshold = float(np.nanmean(group.quantile(entropies, draws, _QUANTILE)))
            threshold = batch_threshold
        else:
            peaks = group.quantile(windows, draws, _QUANTILE)
            batch_threshold = float(group.quantile(peaks, np.zeros(len(peaks), np.uint32), 0.5)[0])
        explores[counted] = windows >= (batch_threshold if threshold is None else threshold)
        if self.trigger:
            explores &= tokens.flags(self.trigger)
        counts = sum_rows(explores[counted].astype(np.float64), draws, batch.num_draws)
        return explores, counts, lengths > 0, batch_threshold

    def _bonus(self, effort: _Exploration, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the bonus e of each draw."""
        difficulty = effort.difficulty
        if self.kind == "paper":
            multiplier = np.nan_to_num(np.maximum(effort.means - effort.aims, 0.0)) / (effort.spreads + 1e-6)
            deviation = effort.counts - np.nan_to_num(effort.aims)[difficulty]
            penalised_excess = np.where(
                difficulty == 1, np.abs(deviation), np.where(difficulty == 0, deviation, -deviation)
            )
            return np.where(effort.won, 0.0, -multiplier[difficulty] * np.maximum(penalised_excess, 0.0))
        targets = np.nan_to_num(effort.aims)[difficulty]
        knee, softness, cap = _KNEE[difficulty], _SOFTNESS[difficulty], (coefficients * _REACH)[difficulty]
        gap = effort.counts - targets
        margin = np.maximum(1.0, _MARGIN[difficulty] * targets)

        def price(excess: NDArray[np.float64], part: float) -> NDArray[np.float64]:
            huber = np.where(excess <= knee, excess**2 / (2.0 * knee), excess - knee / 2.0)
            return np.asarray(-np.minimum(cap, part * cap * huber / (margin + knee)))

        excess_above = np.maximum(gap - margin, 0.0)
        penalised_excess = np.maximum(np.abs(gap) - margin, 0.0)
        hard = np.where(
            gap >= -margin,
            cap * _sigmoid((gap + margin) / softness),
            price(np.maximum(-gap - margin, 0.0), 0.5),
        )
        success = np.where(
            difficulty == 0, price(excess_above, 1.0), np.where(difficulty == 1, price(penalised_excess, 1.0), hard)
        )
        baseline = 0.0 if self.consolation == "half" else 0.5
        failure = (_sigmoid(excess_above / softness) - baseline) * cap * _CONSOLATION[difficulty]
        return np.where(effort.won, success, failure)


class _Exploration(NamedTuple):
    """Numbers of exploring tokens in the draws of a batch, their statistics and targets for each difficulty."""

    explores: NDArray[np.bool_]  # of each token: whether it explores
    counts: NDArray[np.float64]  # N of each draw
    known: NDArray[np.bool_]  # of each draw: whether N, score and success are known
    difficulty: NDArray[np.int64]  # of each draw: 0 easy, 1 medium, 2 hard
    won: NDArray[np.bool_]
    means: NDArray[np.float64]  # mean N of each difficulty
    spreads: NDArray[np.float64]  # variance of N of each difficulty
    aims: NDArray[np.float64]  # target T of each difficulty
    threshold: float | None  # of this batch alone; None if no entropy is known


@dataclass(frozen=True)
class RelaxedPenalty(BatchComponent):
    """Scale the KL penalty by the difficulty of a draw's task, and relax it at exploring tokens.

    kl_weight is multiplied by `easy`, `medium` or `hard`, according to the success rate of the draw's group. At tokens
    with a 1 in the column `exploring` it is also multiplied by `inside`.

    Args:
        inside: rho, factor at exploring tokens, from 0 to 1.
        easy: factor for draws of easy tasks, at least 0.
        medium: factor for draws of medium tasks, at least 0.
        hard: factor for draws of hard tasks, at least 0.
        easy_from: smallest success rate of an easy task.
        medium_from: smallest success rate of a medium task; at most `easy_from`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ares import RelaxedPenalty
        >>> RelaxedPenalty().makes
        (token('kl_weight'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (token("exploring"), draw("success"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (token("kl_weight"),)

    inside: float = option(0.5, at_least=0, at_most=1)
    easy: float = option(1.0, at_least=0)
    medium: float = option(1.0, at_least=0)
    hard: float = option(1.0, at_least=0)
    easy_from: float = option(2 / 3, at_least=0, at_most=1)
    medium_from: float = option(1 / 3, at_least=0)

    def check_options(self) -> None:
        """Check that the smallest success rate of medium tasks is not above that of easy tasks."""
        self.require(self.medium_from <= self.easy_from, "medium_from", f"give at most easy_from={self.easy_from}")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a scaled `kl_weight` on tokens."""
        draws, tokens = Rows(batch, "draw"), Rows(batch, "token")
        judged, groups = draws.valid & draws.is_known("success"), draws.keys("group_id")
        shares = group.statistics(draws.flags("success").astype(np.float64), groups, valid=judged).mean[groups]
        shares = np.nan_to_num(shares, nan=0.0)
        of_draw = np.where(
            shares >= self.easy_from, self.easy, np.where(shares >= self.medium_from, self.medium, self.hard)
        )
        return tokens.scale(of_draw[tokens.draws] * np.where(tokens.flags("exploring"), self.inside, 1.0), "kl_weight")


def _sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1.0 + np.tanh(0.5 * values))


ARES = Recipe(
    name="ares",
    source="arXiv:2510.08457",
    reward=(OutcomeScore(), ExplorationEffort(kind="paper", threshold="tokens", momentum=0.0)),
    advantage=GroupRelative(),
    weight=(GroupFilter(column="score", band=Band(std_above=None, at_least=0.01, at_most=0.99)), RelaxedPenalty()),
    loss=Policy("sequence_mean", kl=KL(0.01)),
    minibatches=4,
)
