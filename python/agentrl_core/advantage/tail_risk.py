"""Advantages for the tail of the scores rather than their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.advantage.normalisation import Normalisation
from agentrl_core.component.component import Column, StatefulComponent
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group, keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_LEVELS = np.arange(1, 20) / 20.0


@dataclass(frozen=True)
class TailRisk(StatefulComponent):
    """advantage = the mixed tail risk of the paper that a draw belongs to, shared among its draws.

    Source: RiskPO, arXiv:2510.00911.

    `bundle` groups in a row make a bundle; paper j of a bundle has the j-th draw of each (draws beyond the smallest
    group are left without an advantage), and s is the sum of its scores. With the quantiles l and u of s at `low` and
    `high`:

        CVaR = -(l - s)+ / low,   RVaR = [(s - l)+ - (s - u)+ + b] / (high - low),   b = l - u or 0
        A_paper = (omega * CVaR + RVaR) / (omega + 1), over the standard deviation of the bundle's s + eps

    The quantiles are tracked from batch to batch at the levels .05, .10, ..., .95, of which those nearest to `low` and
    `high` are read, and moved after they were read: q <- q + rate * (level - share of papers below q). Draws without a
    score count as if their group were smaller.

    Args:
        bundle: groups of a bundle, at least 1; the last may have fewer.
        low: level of the lower quantile, above 0.
        high: level of the upper quantile, above `low`, at most 1.
        omega: weight of the lower tail, at least 0.
        quantiles: `track`; `batch`: the quantiles of each bundle's own papers; `mix`: the mean of both. The first batch
            has nothing tracked yet and reads its own.
        rate: of the tracking, at least 0.
        natural_baseline: b = l - u, so that the middle term is at most 0; or 0.
        curve_baseline: the numerators of CVaR and RVaR are less their means over the tracked quantiles (trapezoids over
            the levels), in which b cancels.
        tail: `upper`: (s - u)+ / (1 - high) in place of CVaR, which seeks risk; the paper's ablation.
        scale: `std`, or `none`.
        eps: added to the standard deviation, at least 0.
        credit: what a draw with score r gets of its paper's A: all of it (`uniform`); half of it where r > 0 and 1.5
            times where not (`score`); all, over the standard deviation of its group, 1 where that is at most 1e-3
            (`std`); its share of the sum of (r - mean of its group) over the paper, equal shares where that is 0
            (`sum_mean`).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import TailRisk
        >>> TailRisk().initial_state()
        {'quantiles': []}
    """

    phase: ClassVar[str] = "advantage"

    bundle: int = 5
    low: float = 0.2
    high: float = 0.9
    omega: float = 1.5
    quantiles: Literal["track", "batch", "mix"] = "track"
    rate: float = 0.1
    natural_baseline: bool = True
    curve_baseline: bool = False
    tail: Literal["lower", "upper"] = "lower"
    scale: Literal["std", "none"] = "std"
    eps: float = 1e-6
    credit: Literal["uniform", "score", "std", "sum_mean"] = "std"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.bundle >= 1, "bundle", "give a number of at least 1")
        self.require(0.0 < self.low < self.high, "low", f"give a number above 0 and below high={self.high}")
        self.require(self.high <= 1.0, "high", "give a number of at most 1")
        self.require(self.tail == "lower" or self.high < 1.0, "high", 'give a number below 1, or choose tail="lower"')
        for option in ("omega", "rate", "eps"):
            self.require(getattr(self, option) >= 0.0, option, "give a number of at least 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Score and group of each draw."""
        return needed("draw", "score", "group_id")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)

    def initial_state(self) -> dict[str, Any]:
        """Nothing tracked."""
        return {"quantiles": []}

    def advance(self, batch: Batch, state: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Return `batch` with the column `advantage` on draws, and the tracked quantiles."""
        rows = Rows(batch, "draw")
        score, groups = rows.values("score"), rows.keys("group_id")
        paper, used = self._papers(rows, groups)
        bundles = groups // self.bundle
        papers = keys.dense(paper[used])
        totals = group.sums(score[used], papers)
        first = np.unique(papers, return_index=True)[1]
        bundle_of = keys.dense(bundles[used][first])
        low, high, curve, state = self._quantiles(totals, bundle_of, state)
        risk = _core.reward_tail_risk(
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
            spread = np.nan_to_num(group.statistics(totals, bundle_of).std, nan=1.0)[bundle_of]
            risk = risk / (spread + self.eps)
        made = np.zeros(len(rows))
        made[used] = risk[papers] * self._shares(score[used], groups[used], papers)
        return rows.write(advantage=made), state

    def _papers(self, rows: Rows, groups: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """The paper of each draw, and whether the paper is full."""
        valid = rows.valid
        place = np.zeros(len(rows), dtype=np.uint32)
        place[valid] = group.rank(np.zeros(int(valid.sum())), keys.dense(groups[valid]))
        sizes = np.bincount(groups, weights=valid)
        bundles = groups // self.bundle
        smallest = group.statistics(sizes[groups], bundles).least[keys.dense(bundles)]
        return keys.composite(bundles, place), valid & (place < smallest)

    def _quantiles(
        self, totals: NDArray[np.float64], bundle_of: NDArray[np.uint32], state: dict[str, Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], dict[str, Any]]:
        """The lower and upper quantile that each paper is held against, those of all levels, and the next state."""
        known = np.array(state["quantiles"], dtype=np.float64)
        own = [group.quantile(totals, bundle_of, level)[bundle_of] for level in (self.low, self.high)]
        if not len(totals):
            return own[0], own[1], known, state
        read, following = _core.reward_tracked_quantiles(known if len(known) else None, totals, _LEVELS, self.rate)
        near = [int(np.argmin(np.abs(_LEVELS - level))) for level in (self.low, self.high)]
        tracked = [np.full(len(totals), read[place]) for place in near] if len(known) else own
        share = {"track": 1.0, "batch": 0.0, "mix": 0.5}[self.quantiles]
        low, high = (share * far + (1.0 - share) * near for far, near in zip(tracked, own, strict=True))
        return low, high, read, {"quantiles": following.tolist()}

    def _shares(
        self, score: NDArray[np.float64], groups: NDArray[np.uint32], papers: NDArray[np.uint32]
    ) -> NDArray[np.float64]:
        """What each draw gets of its paper's advantage."""
        if self.credit == "uniform":
            return np.ones(len(score))
        if self.credit == "score":
            return np.where(score > 0.0, 0.5, 1.5)
        if self.credit == "std":
            spread = np.nan_to_num(group.statistics(score, groups).std, nan=0.0)[keys.dense(groups)]
            return 1.0 / np.where(spread <= 1e-3, 1.0, spread)
        gain = Normalisation(scale="none").compare(score, groups, valid=np.ones(len(score), dtype=np.bool_))
        total = group.sums(gain, papers)[papers]
        size = np.bincount(papers, minlength=1)[papers]
        level = np.abs(total) <= 1e-8
        return np.where(level, 1.0 / size, gain / np.where(level, 1.0, total))
