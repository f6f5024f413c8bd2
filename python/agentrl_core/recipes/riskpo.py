"""RiskPO: optimise the tail of the scores of bundled tasks instead of their mean (arXiv:2510.00911).

Tasks are bundled. An answer gets the advantage of R, the summed score of one answer to each task of its bundle, with
tracked quantiles q of R:

    A = - 1.5 (q_0.2 - R)+ + (R - q_0.2)+ - (R - q_0.8)+ + q_0.2 - q_0.8
    L = - mean_i min(s_i A, clip(s_i, 0.8, 1.2) A),   s_i = exp(mean over the tokens of an answer of its log-ratio)

The released scripts differ from the paper. The script for mathematics is `RISKPO.replace(advantage=TailRisk(),
loss=Policy(clip=Clip(dual=3.0)))`. The script for DAPO-Math has
`TailRisk(high=0.8, credit="sum_mean", natural_baseline=False)`, groups of 10 and 4 optimizer steps. The public
trainer seems to lose its tracked quantiles in every step, so it uses the quantiles of the batch:
`TailRisk(quantiles="batch")`. Its other baseline is `TailRisk(natural_baseline=False, curve_baseline=True)`. The
paper's risk-seeking ablation is `TailRisk(tail="upper")`. Groups have 5 draws.

Equations:
    Read: the authors' README and the code; reviews of the paper and notes on it, which agree on P1 and P2.

    - P1, advantage: `TailRisk(high=0.8, omega=0.5, scale="none", credit="uniform")`.
    - P2, objective: `Policy(ratio=Ratio("sequence"), aggregate="sequence_mean")`.
    - C1, papers of a bundle: `TailRisk(bundle=5)`.
    - C2, quantile tracking: `tracked_quantiles`, `step_size=0.1`.
    - C3, quantiles of an advantage: `TailRisk(quantiles="track")`; before the first update, the quantiles of each
      bundle.
    - C4, RVaR of a paper: `tail_risk`, with the natural baseline.
    - C5, CVaR of a paper: `tail_risk`.
    - C6, MVaR: `TailRisk(omega=1.5)`, an option, divided by the standard deviation of a bundle's papers.
    - C7, credit of a response: `TailRisk(credit="std")`, an option, with the standard deviation over all scored
      responses to its question.
    - C8, baseline by the quantile curve: `curve_baseline=True`; off in the scripts.
    - C9, risk-seeking measure: `tail="upper"`.
    - C10, loss of the code: an option, `Policy(clip=Clip(dual=3.0))`, one mean over all tokens.

Differs:
    - Scale: `TailRisk` divides both terms by the widths of their levels, like the code, and by omega + 1. With omega
      = 0.5 the ratio of the terms is 1.5 to 1, as in P1, and A is 10/9 of the A in P1.
    - Clip range: the number in the paper is not known; 0.2 here, as in the scripts, a bound that a mean over tokens
      rarely reaches.
    - Added to the levels: 1e-6 in the code, nothing here.
    - Baseline by the quantile curve: the integral over the levels in the code, the mean over them here.
    - Optimizer steps: 2 a batch, as in the script for mathematics; 4 for DAPO-Math.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, group, keys
from agentrl_core.component import Column, IterationRecord, Rows, StatefulComponent, draw, option
from agentrl_core.loss import Policy, Ratio
from agentrl_core.operators.risk import tail_risk, tracked_quantiles

if TYPE_CHECKING:
    from agentrl_core import Batch


_LEVELS = np.arange(1, 20) / 20.0


@dataclass(frozen=True)
class _Papers:
    """The papers of a batch (one draw of each group of a bundle), with scores and group statistics of their draws."""

    used: NDArray[np.bool_]
    of_draw: NDArray[np.uint32]
    totals: NDArray[np.float64]
    bundles: NDArray[np.uint32]
    scores: NDArray[np.float64]
    means: NDArray[np.float64]
    """Mean score of each draw's group, including draws that are in no paper."""
    spreads: NDArray[np.float64]


@dataclass(frozen=True)
class TailRisk(StatefulComponent):
    """Compute advantages from the tail of the scores, not their mean, so that hard tasks weigh more than easy ones.

    Scores of single tasks are too coarse for quantiles, so tasks are bundled like the questions of an exam: `bundle`
    consecutive groups form a bundle, and the j-th draws of its groups form its j-th exam paper. Draws beyond the size
    of the smallest group get advantage 0. s is the sum of a paper's scores. With the quantiles l and u of s at `low`
    and `high`:

        CVaR = -(l - s)+ / low,   RVaR = [(s - l)+ - (s - u)+ + b] / (high - low),   b = l - u or 0
        A_paper = (omega * CVaR + RVaR) / (omega + 1), divided by the standard deviation of the bundle's s plus eps

    The quantiles are tracked over batches at the levels .05, .10, ..., .95; the levels nearest to `low` and `high`
    are used. The first batch sets the quantiles. Each later batch reads them, then moves them: q <- q + step_size *
    (level - share of papers below q). Draws without a score count as if their group were smaller.

    Args:
        bundle: groups per bundle, at least 1; the last bundle may have fewer.
        low: level of the lower quantile, above 0.
        high: level of the upper quantile, above `low`, at most 1.
        omega: weight of the lower tail, at least 0.
        quantiles: `track`: the tracked quantiles; `batch`: the quantiles of each bundle's own papers; `mix`: the mean
            of both. The first batch has no tracked quantiles yet and uses its own.
        step_size: step size of the tracking, at least 0.
        natural_baseline: whether b = l - u, so that the middle term is at most 0; otherwise b = 0.
        curve_baseline: whether to subtract from the numerators of CVaR and RVaR their means over the tracked
            quantiles (trapezoids over the levels); b then cancels.
        tail: `lower`: CVaR; `upper`: (s - u)+ / (1 - high) in place of CVaR, which is risk-seeking; the paper's
            ablation.
        scale: `std`, or `none`: no division by the standard deviation.
        eps: added to the standard deviation, at least 0.
        credit: advantage of a draw with score r, from its paper's A. `uniform`: A. `score`: half of A if r > 0,
            otherwise 1.5 A. `std`: A divided by (standard deviation of its group + eps), with 1 for a standard
            deviation of at most 1e-3. `sum_mean`: A times the draw's share in the sum of (r - mean of its group) over
            the paper; equal shares if that sum is 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.riskpo import TailRisk
        >>> TailRisk().initial_state()
        {'quantiles': []}
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    bundle: int = option(5, at_least=1)
    low: float = option(0.2, above=0)
    high: float = option(0.9, at_most=1)
    omega: float = option(1.5, at_least=0)
    quantiles: Literal["track", "batch", "mix"] = "track"
    step_size: float = option(0.1, at_least=0)
    natural_baseline: bool = True
    curve_baseline: bool = False
    tail: Literal["lower", "upper"] = "lower"
    scale: Literal["std", "none"] = "std"
    eps: float = option(1e-6, at_least=0)
    credit: Literal["uniform", "score", "std", "sum_mean"] = "std"

    def check_options(self) -> None:
        """Check that `low` is below `high`, and that `high` is below 1 if `tail` is `upper`."""
        self.require(self.low < self.high, "low", f"give a number below high={self.high}")
        self.require(self.tail == "lower" or self.high < 1.0, "high", 'give a number below 1, or choose tail="lower"')

    def initial_state(self) -> dict[str, Any]:
        """Return a state without tracked quantiles."""
        return {"quantiles": []}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        papers = self._papers(rows)
        totals, bundles = papers.totals, papers.bundles
        low, high, curve = self._quantiles(totals, bundles, state)
        risk = tail_risk(
            totals,
            low,
            high,
            alpha_low=self.low,
            alpha_high=self.high,
            omega=self.omega,
            natural_baseline=self.natural_baseline,
            tail=self.tail,
            curve=(_LEVELS, curve) if self.curve_baseline and len(totals) else None,
        )
        if self.scale == "std":
            spread = np.nan_to_num(group.statistics(totals, bundles).std, nan=1.0)[bundles]
            risk = risk / (spread + self.eps)
        advantages = np.zeros(len(rows))
        advantages[papers.used] = risk[papers.of_draw] * self._shares(papers)
        return rows.write(advantage=advantages)

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        """Return the tracked quantiles, moved towards the quantiles of the papers of the iteration."""
        totals = self._papers(Rows(closed.batch, "draw")).totals
        if not len(totals):
            return state
        tracked = self._tracked(state)
        batch_quantiles, updated = tracked_quantiles(tracked, totals, levels=_LEVELS, step_size=self.step_size)
        return {"quantiles": (batch_quantiles if tracked is None else updated).tolist()}

    def _papers(self, rows: Rows) -> _Papers:
        groups, valid = rows.keys("group_id"), rows.valid
        place = np.zeros(len(rows), dtype=np.uint32)
        place[valid] = group.rank(np.zeros(int(valid.sum())), keys.dense(groups[valid]))
        sizes = np.bincount(groups, weights=valid)
        bundles = groups // self.bundle
        smallest = group.statistics(sizes[groups], bundles).least[keys.dense(bundles)]
        used = valid & (place < smallest)
        of_draw = keys.dense(keys.composite(bundles, place)[used])
        scores = rows.values("score")[used]
        of_group = group.statistics(rows.values("score"), groups, valid=valid)
        first = np.unique(of_draw, return_index=True)[1]
        return _Papers(
            used,
            of_draw,
            group.sums(scores, of_draw),
            keys.dense(bundles[used][first]),
            scores,
            of_group.mean[groups][used],
            of_group.std[groups][used],
        )

    @staticmethod
    def _tracked(state: dict[str, Any]) -> NDArray[np.float64] | None:
        quantiles = np.array(state["quantiles"], dtype=np.float64)
        return quantiles if len(quantiles) else None

    def _quantiles(
        self, totals: NDArray[np.float64], bundles: NDArray[np.uint32], state: dict[str, Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the lower and upper quantile of each paper, and the quantiles of all levels."""
        tracked = self._tracked(state)
        bundle_quantiles = [group.quantile(totals, bundles, level)[bundles] for level in (self.low, self.high)]
        if not len(totals):
            return bundle_quantiles[0], bundle_quantiles[1], np.zeros(0)
        curve, _ = tracked_quantiles(tracked, totals, levels=_LEVELS, step_size=self.step_size)
        nearest_levels = [int(np.argmin(np.abs(_LEVELS - level))) for level in (self.low, self.high)]
        reference_quantiles = (
            bundle_quantiles if tracked is None else [np.full(len(totals), curve[place]) for place in nearest_levels]
        )
        share = {"track": 1.0, "batch": 0.0, "mix": 0.5}[self.quantiles]
        low, high = (
            share * reference + (1.0 - share) * bundle_quantile
            for reference, bundle_quantile in zip(reference_quantiles, bundle_quantiles, strict=True)
        )
        return low, high, curve

    def _shares(self, papers: _Papers) -> NDArray[np.float64]:
        """Return the factor that turns the paper's advantage into the advantage of each draw."""
        score, of_draw = papers.scores, papers.of_draw
        if self.credit == "uniform":
            return np.ones(len(score))
        if self.credit == "score":
            return np.where(score > 0.0, 0.5, 1.5)
        if self.credit == "std":
            spread = np.nan_to_num(papers.spreads, nan=0.0)
            return 1.0 / (np.where(spread <= 1e-3, 1.0, spread) + self.eps)
        gain = score - papers.means
        total = group.sums(gain, of_draw)[of_draw]
        size = np.bincount(of_draw, minlength=1)[of_draw]
        level = np.abs(total) <= 1e-6
        return np.where(level, 1.0 / size, gain / np.where(level, 1.0, total))


RISKPO = Recipe(
    name="riskpo",
    source="arXiv:2510.00911",
    advantage=TailRisk(high=0.8, omega=0.5, scale="none", credit="uniform"),
    loss=Policy(ratio=Ratio("sequence"), aggregate="sequence_mean"),
    minibatches=2,
)
