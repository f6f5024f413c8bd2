"""SPEAR: explore tools first, then imitate good past rollouts in bursts (arXiv:2509.22601).

The method is for long tasks with tools and a reward at the end. A bonus for tool calls decays while imitation grows.
After each iteration the rollouts with a positive advantage and a tool call join a buffer; rollouts older than five
iterations are removed from it. Let p50 be the median of the stored group means. When more than 1.5 `size` stored
rollouts have R > p50, the buffer is emptied and a random subset of these rollouts, a power of two and at most `size`,
is trained in a separate pass after the fresh ones, with the advantage

    A = w(t) (R - p50),   w(t) = (1 - cos(pi t / T)) / 2.

Source: arXiv:2509.22601; code TencentYoutuResearch/SPEAR. In the code the weight w(t) is a factor of the loss; here it
is a factor of the advantage, which is the same, since the loss is linear in it. A flag leaves out rollouts that do not
end properly. The code also has a mode without trigger, in which stored advantages decay: a `replay.Mix` of the same
memory.
Needs: the fact `tool_calls` of an episode; `Recipe(old_logprob="behaviour")`, since stored rows have these log-probs.

Equations:
    Read: the public code and notes; the paper's text was not read.

    - C1, tool reward: `CombineReward`, 0.1 per call up to 1, decaying by a cosine.
    - C2, stored rollouts: `RecalibratedBurst(memory=Memory(where=..., max_age=5))`; not computed: it needs a store; the
      recipe's own test checks it.
    - C3, recomputed advantage: `RecalibratedBurst`, R - p50; not computed: it needs a store, as C2.
    - C4, weight of the replay loss: the schedule of `RecalibratedBurst.coefficient`, a factor of the advantage.
    - C5, covariance clip: `CovarianceMask(0.02, 1.0, 40.0)`.
    - C6, loss of fresh rollouts: `GroupRelative(scale="none")`, `Policy`, clip ranges 0.2 and 0.28.
    - N1, trigger: `RecalibratedBurst`; not computed: it needs a store, as C2.

Differs:
    - Equal to the median: such rollouts are kept in the code with advantage 0, and left out here.
    - Length of the schedules: 100 to 200 iterations in scripts, 200 here.
    - Covariance bounds: 2 and 60 in the code, for mathematics 1 and 40; 1 and 40 here.
    - Dual clip: 10 here; no source states it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import (
    BatchComponent,
    Column,
    IterationRecord,
    Rows,
    State,
    Where,
    column_name,
    draw,
    option,
)
from agentrl_core.loss import Clip, CovarianceMask, Policy, Train
from agentrl_core.replay import Draws, Memory, Replay
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.select import Band
from agentrl_core.weight import FlagFilter, GroupFilter

if TYPE_CHECKING:
    from agentrl_core import Batch

FRESH, STORED = Where(source="fresh"), Where(source="replay")


@dataclass(frozen=True)
class RecalibratedBurst(Replay):
    """Wait until enough stored rollouts are better than the median group, then draw a burst and empty the memory.

    Args:
        memory: memory of the stored rollouts; only rollouts that used a tool enter it.
        tools: draw column that counts tool calls.
        size: largest burst; a burst needs more than 1.5 times this number of better rollouts.
        baseline: number of stored group means; whole iterations are removed, oldest first.
        coefficient: w, the factor of the advantages.

    Example:
        >>> from agentrl_core.recipes.spear import RecalibratedBurst
        >>> RecalibratedBurst(size=32).makes
        (draw('recalibrated'),)
    """

    memory: Memory = Memory(where=Where(column="advantage", above=0.0), max_age=5)  # noqa: RUF009 - frozen
    tools: str = column_name("tool_calls", level="draw")
    size: int = option(2048, at_least=1)
    baseline: int = option(10_240, at_least=1)
    coefficient: float = option(1.0, at_least=0)

    def own_makes(self) -> Iterable[Column]:
        """Return the column that is made: `recalibrated`, the advantages of stored draws."""
        return (draw("recalibrated"),)

    def initial_state(self) -> State:
        """Return an empty memory, without group means."""
        return {"memory": self.memory.initial_state(), "means": np.zeros(0), "counts": np.zeros(0, np.int64)}

    def mix(self, state: State, batch: Batch, key: int) -> Draws | None:
        """Return the draws of a burst; None if there are too few better rollouts."""
        if not len(state["means"]):
            return None
        median = float(np.median(state["means"]))
        stored = self.memory.drawable(state["memory"], int(np.asarray(batch.column("iteration", "draw"))[0]))
        better = stored.take(stored.score > median)
        if len(better) <= 1.5 * self.size or len(better) < 2:
            return None
        rows, probability = self.memory.draw(better, min(1 << (len(better).bit_length() - 1), self.size), key)
        chosen = better.take(rows)
        return Draws.of(
            chosen.trajectory_id,
            votes_in=Draws.NEW_GROUP,
            new_group=np.arange(len(chosen), dtype=np.int32),
            votes=False,
            probability=probability,
            columns={"recalibrated": (self.coefficient * (chosen.score - median)).astype(np.float32)},
            reason=chosen.reasons(f"better than the median of the groups, {median:g}"),
        )

    def next(self, state: State, closed: IterationRecord) -> State:
        """Add rollouts and group means of an iteration; empty the memory first if the iteration had a burst."""
        finished, batch = closed.finished, closed.batch
        if STORED.holds(batch).any():
            state = {**state, "memory": self.memory.initial_state()}
        used = np.nan_to_num(np.asarray(finished.column(self.tools, "draw"), np.float64)) >= 1.0
        with_tools = replace(closed, finished=finished.select_draws(np.flatnonzero(used)))
        scores = np.asarray(finished.column("score", "draw"), np.float64)
        known = FRESH.holds(finished) & np.isfinite(scores)
        _, groups = np.unique(np.asarray(finished.column("group_id", "draw"))[known], return_inverse=True)
        means = np.bincount(groups, scores[known]) / np.bincount(groups)
        counts = state["counts"]
        # Old means are removed before new ones are added, so there may be one iteration too many, as in the code.
        first = int((np.cumsum(counts[::-1])[::-1] > self.baseline).sum())
        num_kept = int(counts[first:].sum())
        return {
            "memory": self.memory.next(state["memory"], with_tools),
            "means": np.concatenate([state["means"][len(state["means"]) - num_kept :], means]),
            "counts": np.append(counts[first:], len(means)).astype(np.int64),
        }


@dataclass(frozen=True)
class StoredAdvantage(BatchComponent):
    """Set the advantage of stored draws to the column `recalibrated`, computed when they were drawn again.

    Example:
        >>> from agentrl_core.recipes.spear import StoredAdvantage
        >>> StoredAdvantage().makes
        (draw('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` of stored draws."""
        rows = Rows(batch, "draw")
        advantages = rows.values("recalibrated") if batch.has("recalibrated", "draw") else np.zeros(len(rows))
        return rows.write(advantage=advantages)


_POLICY = Policy(
    clip=Clip(0.2, 0.28, dual=10.0), mask=CovarianceMask(0.02, 1.0, 40.0), aggregate="constant", constant=8192.0
)

SPEAR = Recipe(
    name="spear",
    source="arXiv:2509.22601",
    reward=(
        OutcomeScore(),
        CombineReward(
            column="tool_calls",
            coefficient=Schedule(start=0.1, end=0.0, iterations=200, kind="cosine"),
            at_most=Schedule(start=1.0, end=0.0, iterations=200, kind="cosine"),
        ),
    ),
    replay=RecalibratedBurst(coefficient=Schedule(start=0.0, end=1.0, iterations=200, kind="cosine")),
    advantage=(GroupRelative(scale="none", where=FRESH), StoredAdvantage(where=STORED)),
    weight=(
        GroupFilter(band=Band(std_above=None), top_fraction=0.75, where=FRESH),
        FlagFilter(flags="void,truncated", where=FRESH),
    ),
    loss=(Train(_POLICY, where=FRESH), Train(_POLICY, where=STORED)),
)
