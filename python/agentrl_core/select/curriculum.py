"""Curricula: stages of difficulty, and quotas of domains."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import Component, Rows, option
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.component.state import IterationRecord, State
    from agentrl_core.select.pool import Pool
    from agentrl_core.select.task_outcomes import TaskOutcomes

Parts = Sequence[tuple[NDArray[np.bool_], float]]
"""Masks of the pool, each with its share of the groups."""


@dataclass(frozen=True)
class Curriculum(Component):
    """Open buckets of tasks from easy to hard.

    Stage s chooses tasks of buckets 0 to s, a share `earlier` of them from buckets before s. A stage ends when the
    smoothed success rate of its own bucket (or a metric) exceeds `above`, or after `iterations` iterations.

    Sources: CRAFT-GUI arXiv:2508.11360 (`Curriculum("steps", (3, 8), above=0.8, earlier=0.15)`); SearchGym-RL
    (`above=0.7`); AceReason-Nemotron arXiv:2505.16400 (`Curriculum("domain", ("math", "code"), iterations=,
    earlier=0.0)`); URPO arXiv:2507.17515 (`metric="success@preference", above=0.7`).

    Args:
        by: column of the pool with the difficulty; `domain`: by the name of the domain.
        buckets: ascending numbers, the largest value of each bucket but the last; or the domain of each bucket, or a
            tuple of its domains.
        above: success rate above which the next stage begins; None: only `iterations` ends one.
        metric: name of a metric to compare with `above`; empty: the success rate of the bucket.
        smoothing: weight of earlier iterations in the smoothed rate.
        iterations: longest length of a stage; None: no limit.
        earlier: share of groups from earlier buckets; None: all open tasks are equal.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select import Curriculum
        >>> Curriculum("steps", (3, 8)).initial_state()
        {'stage': 0, 'begun': 0, 'rate': None}
    """

    by: str = option(filled=True)
    buckets: tuple[float, ...] | tuple[str | tuple[str, ...], ...] = option(filled=True)
    above: float | None = 0.8
    metric: str = ""
    smoothing: float = option(0.0, at_least=0, below=1)
    iterations: int | None = option(None, at_least=1)
    earlier: float | None = option(None, at_least=0, at_most=1)

    def check_options(self) -> None:
        """Require ascending bounds of buckets or names of domains, and a condition that ends a stage."""
        if self.by == "domain":
            self.require(
                not self._bounds,
                "buckets",
                'give names of domains, such as ("math", "code")',
            )
        else:
            self.require(
                len(self._bounds) == len(self.buckets)
                and all(low < high for low, high in itertools.pairwise(self._bounds)),
                "buckets",
                "give ascending numbers, such as (3, 8)",
            )
        self.require(
            self.above is not None or self.iterations is not None,
            "above",
            "set above or iterations, so that a stage ends",
        )

    @property
    def _bounds(self) -> list[float]:
        return [bound for bound in self.buckets if isinstance(bound, float)]

    @property
    def last(self) -> int:
        """Return the number of the last stage, counted from 0."""
        return len(self.buckets) - (self.by == "domain")

    def of(self, pool: Pool) -> NDArray[np.int64]:
        """Return the bucket of each task; -1 if it is in none."""
        if self.by != "domain":
            return np.searchsorted(np.array(self._bounds), pool.column(self.by), side="left").astype(np.int64)
        domains = [each if isinstance(each, tuple) else (each,) for each in self.buckets]
        bucket_of_domain = {name: place for place, names in enumerate(domains) for name in names}
        buckets = np.array([bucket_of_domain.get(name, -1) for name in pool.domains], np.int64)
        task_buckets: NDArray[np.int64] = buckets[pool.column("domain")]
        return task_buckets

    def initial_state(self) -> State:
        """Return the first stage."""
        return {"stage": 0, "begun": 0, "rate": None}

    def parts(self, state: State, pool: Pool) -> Parts:
        """Return masks of the open tasks with their shares: all open buckets, or the newest and the earlier ones."""
        buckets, stage = self.of(pool), state["stage"]
        if self.earlier is None or stage == 0:
            return [((buckets >= 0) & (buckets <= stage), 1.0)]
        return [(buckets == stage, 1 - self.earlier), ((buckets >= 0) & (buckets < stage), self.earlier)]

    def next(self, state: State, visits: TaskOutcomes, closed: IterationRecord) -> State:
        """Return the stage after an iteration."""
        stage, begun, rate = state["stage"], state["begun"], state["rate"]
        now = closed.metrics.get(self.metric, math.nan) if self.metric else self._success(stage, visits, closed)
        if not math.isnan(now):
            rate = now if rate is None else self.smoothing * rate + (1 - self.smoothing) * now
        solved = self.above is not None and rate is not None and rate > self.above
        over = self.iterations is not None and closed.iteration + 1 - begun >= self.iterations
        if stage < self.last and (solved or over):
            return {"stage": stage + 1, "begun": closed.iteration + 1, "rate": None}
        return {"stage": stage, "begun": begun, "rate": rate}

    def _success(self, stage: int, visits: TaskOutcomes, closed: IterationRecord) -> float:
        if closed.pool is None or not len(visits):
            return math.nan
        of_stage = np.repeat(self.of(closed.pool)[visits.rows] == stage, visits.counts) & ~np.isnan(visits.solved)
        return float(visits.solved[of_stage].mean()) if of_stage.any() else math.nan


@dataclass(frozen=True)
class Quota(Component):
    """Choose domains so that the batch has target shares: domains with more rejected groups are chosen more often.

        w_d = target_d clip(target_d / max(realised_d, 1e-6), at_least, at_most)^power

    Groups are distributed over domains in proportion to w; `realised` is the smoothed share of the domain in the draws
    of the batch.

    Source: Apriel-Reasoner arXiv:2604.02007 (`at_least=0.1, at_most=10.0`).

    Args:
        targets: names of domains with their shares; other domains have share 0. Empty: all domains have equal shares.
        power: exponent of the correction; 0: the targets themselves.
        at_most: largest correction.
        at_least: smallest correction, at most 1.
        smoothing: weight of earlier iterations in the realised share.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select import Quota
        >>> Quota((("math", 2), ("code", 1))).shares({"realised": {}}, ["code", "math"]).round(3).tolist()
        [0.333, 0.667]
    """

    targets: tuple[tuple[str, float], ...] = ()
    power: float = option(1.0, at_least=0)
    at_most: float = option(5.0, at_least=1)
    at_least: float = option(0.0, at_least=0, at_most=1)
    smoothing: float = option(0.9, at_least=0, below=1)

    def check_options(self) -> None:
        """Require that the targets are at least 0, and not all 0."""
        shares = dict(self.targets).values()
        self.require(
            all(share >= 0 for share in shares) and (not shares or sum(shares) > 0),
            "targets",
            'give shares of at least 0, not all 0, such as (("math", 0.7), ("code", 0.3))',
        )

    def initial_state(self) -> State:
        """Return the state before any draw: no realised shares."""
        return {"realised": {}}

    def shares(self, state: State, domains: Sequence[str]) -> NDArray[np.float64]:
        """Return the share of each domain in the next groups."""
        target_shares = dict(self.targets) or dict.fromkeys(domains, 1.0)
        targets = np.array([target_shares.get(domain, 0.0) for domain in domains])
        if targets.sum() == 0:
            raise InvalidInputError(
                f"{self.title()}: none of the domains {', '.join(target_shares)} of targets is in the pool; "
                f"use some of: {', '.join(domains)}"
            )
        targets = targets / targets.sum()
        realised = np.array([state["realised"].get(domain, np.nan) for domain in domains])
        realised = np.where(np.isnan(realised), targets, realised) if not state["realised"] else np.nan_to_num(realised)
        corrections = np.clip(targets / np.maximum(realised, 1e-6), self.at_least, self.at_most) ** self.power
        weights: NDArray[np.float64] = targets * corrections
        return np.asarray(weights / weights.sum())

    def parts(self, state: State, pool: Pool) -> Parts:
        """Return a mask of the tasks of each domain, with the domain's share."""
        codes, shares = pool.column("domain"), self.shares(state, pool.domains)
        return [(codes == code, float(share)) for code, share in enumerate(shares) if share > 0]

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the realised shares after an iteration, averaged over iterations."""
        if closed.pool is None or closed.selection is None or not closed.batch.num_draws:
            return state
        ids = dict(zip(closed.pool.ids(closed.selection.rows), closed.selection.rows.tolist(), strict=True))
        names, counts = np.unique(Rows(closed.batch, "draw").names("task_id"), return_counts=True)
        in_pool = [
            (ids[name], count) for name, count in zip(names.tolist(), counts.tolist(), strict=True) if name in ids
        ]
        if not in_pool:
            return state
        rows, numbers = (np.array(part, np.int64) for part in zip(*in_pool, strict=True))
        totals = np.bincount(closed.pool.column("domain")[rows], weights=numbers, minlength=len(closed.pool.domains))
        now = dict(zip(closed.pool.domains, (totals / totals.sum()).tolist(), strict=True))
        before = state["realised"]
        if not before:
            return {"realised": now}
        names_now = sorted({*before, *now})
        return {
            "realised": {
                name: self.smoothing * before.get(name, 0.0) + (1 - self.smoothing) * now.get(name, 0.0)
                for name in names_now
            }
        }
