"""A selector composed of a tracker, a score, a sampler, an allocator and further parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import Column, draw
from agentrl_core.select.allocator import Allocator
from agentrl_core.select.curriculum import Curriculum, Quota
from agentrl_core.select.pool_filter import PoolFilter
from agentrl_core.select.prompt_bandit import PromptBandit
from agentrl_core.select.retry_queue import RetryQueue
from agentrl_core.select.sampler import Sampler, TopSampler
from agentrl_core.select.selector import SURVEY, TRAIN, Selection, SelectionRequest, Selector
from agentrl_core.select.success_trackers import Beta
from agentrl_core.select.survey import Survey
from agentrl_core.select.task_outcomes import TaskOutcomes
from agentrl_core.select.task_score import TaskScore
from agentrl_core.select.tracker import Candidates, Tracker

if TYPE_CHECKING:
    from agentrl_core.component.state import IterationRecord, State
    from agentrl_core.select.pool import Pool

_CANDIDATES, _SAMPLE, _POSTERIOR, _VARIANT, _SURVEY, _REST = range(6)
"""Numbers for the different uses of a key, so that no two uses share random numbers."""
_PIECE = 1 << 17
"""Number of tasks scored at a time: small enough for the cache of a core, large enough for threads."""


@dataclass(frozen=True)
class ComposedSelector(Selector):
    """Choose tasks by tracked statistics, and allocate rollouts to them.

    A round consists of surveys if they are due, tasks of the queue, and sampled tasks. A task may be sampled if the
    pool filter keeps it, the curriculum has opened it and this iteration has not taken it yet. Each quota is filled by
    the scores of the tracker's numbers. The allocator sets the number of rollouts, the bandit the prompt variant.
    Without a score all tasks are equally likely, and none is read.

    All parts use their state at the start of the iteration. They are updated when it closes, with the outcomes of all
    its groups.

    Args:
        pool: filter of tasks; None: all.
        stage: a curriculum; None: all tasks at once.
        quota: shares of domains; None: no shares.
        track: tracker of a number for each task.
        score: score of that number; None: all equal.
        sample: sampler of tasks by their scores.
        count: allocator of rollouts; None: `group_size` each.
        variant: prompt variants; None: one prompt.
        survey: tasks to measure; None: none.
        queue: tasks to retry; None: none.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> import numpy as np
        >>> from agentrl_core import select
        >>> from agentrl_core.env import Task
        >>> pool = select.Pool([("world", Task(str(number), "?", "sums", None)) for number in range(100)])
        >>> sampler = select.TopSampler(posterior=True, among=16)
        >>> mopps = select.ComposedSelector(score=select.NearTarget(0.5), sample=sampler)
        >>> wanted = select.SelectionRequest(4, 8, 0, np.zeros(0, np.int64), iteration=0)
        >>> mopps.choose(pool, mopps.initial_state(), wanted, key=7).counts.tolist()
        [8, 8, 8, 8]
    """

    pool: PoolFilter | None = None
    stage: Curriculum | None = None
    quota: Quota | None = None
    track: Tracker = Beta()
    score: TaskScore | None = None
    sample: Sampler = TopSampler()
    count: Allocator | None = None
    variant: PromptBandit | None = None
    survey: Survey | None = None
    queue: RetryQueue | None = None

    def own_makes(self) -> Iterable[Column]:
        """Columns of draws with the tracked numbers of their tasks."""
        return (draw(f"task_{name}") for name in self.track.names)

    def initial_state(self) -> State:
        """Return the state without any task."""
        parts = {name: getattr(self, name) for name in ("pool", "stage", "quota", "track", "count", "variant", "queue")}
        states = {name: part.initial_state() for name, part in parts.items() if part is not None}
        return {"rows": np.zeros(0, np.int64), "groups": 0, **states}

    def choose(self, pool: Pool, state: State, wanted: SelectionRequest, key: int) -> Selection:
        """Choose the groups of one round."""
        key = _core.rng.structural_seed(key, wanted.round)
        state = self.initial_state() | state
        items = np.zeros(0, np.int64)
        if self.queue is not None:
            offered = self.queue.offered(state["queue"], wanted.groups, wanted.iteration, wanted.taken)
            items = state["queue"]["items"][offered]
            queued = state["queue"]["rows"][offered]
        else:
            queued = items
        taken = np.concatenate([wanted.taken, queued])
        rows, chances = self._chosen(pool, state, wanted, wanted.groups - len(queued), taken, key)
        rows = np.concatenate([queued, rows])
        counts = self._counts(pool, state, rows, wanted)
        selection = Selection(
            rows,
            counts,
            self._arms_of(state, len(rows), key),
            np.full(len(rows), TRAIN, np.uint8),
            None if chances is None or len(queued) else chances,
            np.append(items, np.full(len(rows) - len(items), -1)).astype(np.int64),
        )
        if self.survey is None or wanted.round or not self.survey.due(wanted.iteration):
            return selection
        looked_at = self.survey.rows(pool, _core.rng.structural_seed(key, _SURVEY))
        survey = Selection.of(looked_at, self.survey.rollouts or wanted.group_size)
        survey.purpose[:] = SURVEY
        return Selection.concat([selection, survey])

    def _chosen(
        self, pool: Pool, state: State, wanted: SelectionRequest, count: int, taken: NDArray[np.int64], key: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """Choose `count` rows of the pool that were not taken, and return their probabilities if known."""
        out = state["rows"][: len(state["pool"]["out"])][state["pool"]["out"]] if self.pool is not None else taken[:0]
        excluded = np.unique(np.concatenate([taken, out]))
        parts = self._parts(pool, state)
        if parts is None:
            return self._sampled(pool, state, wanted, None, count, excluded, key)
        shares = np.array([share for _, share in parts])
        numbers = _core.select.shares(shares, total=count, low=0, high=max(count, 1)) if count else np.zeros(len(parts))
        chosen_rows: list[NDArray[np.int64]] = []
        for number, (mask, _) in enumerate(parts):
            of_part = _core.rng.structural_seed(key, number)
            rows, _ = self._sampled(pool, state, wanted, mask, int(numbers[number]), excluded, of_part)
            chosen_rows.append(rows)
            excluded = np.concatenate([excluded, rows])
        # If a part has too few tasks, the others fill the round.
        missing = count - sum(map(len, chosen_rows))
        everything = np.logical_or.reduce([mask for mask, _ in parts])
        rest = _core.rng.structural_seed(key, len(parts), _REST)
        chosen_rows.append(self._sampled(pool, state, wanted, everything, missing, excluded, rest)[0])
        return np.concatenate(chosen_rows), None

    def _parts(self, pool: Pool, state: State) -> list[tuple[NDArray[np.bool_], float]] | None:
        """Return masks of the pool with shares: each open part of the curriculum, split by domain; None: no parts."""
        parts = None if self.stage is None else list(self.stage.parts(state["stage"], pool))
        if self.quota is None:
            return parts
        quotas = self.quota.parts(state["quota"], pool)
        return [
            (mask & other, share * part)
            for mask, share in parts or [(np.ones(len(pool), np.bool_), 1.0)]
            for other, part in quotas
        ]

    def _sampled(
        self,
        pool: Pool,
        state: State,
        wanted: SelectionRequest,
        mask: NDArray[np.bool_] | None,
        count: int,
        excluded: NDArray[np.int64],
        key: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """Choose up to `count` rows of a mask that are not excluded, and return their probabilities if known."""
        allowed = None
        if mask is not None:
            allowed = np.flatnonzero(mask)
            allowed = allowed[~np.isin(allowed, excluded)]
        elif self.score is not None and self.sample.among is None:
            allowed = np.delete(np.arange(len(pool)), excluded) if len(excluded) else np.arange(len(pool))
        free = len(pool) - len(excluded) if allowed is None else len(allowed)
        count = max(min(count, free), 0)
        looked_at = count if self.score is None else min(free, count * (self.sample.among or free))
        if self.score is None or self.sample.among is not None:
            # Tasks outside of the mask are not read.
            of_candidates = _core.rng.structural_seed(key, _CANDIDATES)
            if allowed is None:
                allowed = _core.select.drawn(len(pool), looked_at, of_candidates, excluded)
            else:
                allowed = allowed[_core.select.drawn(free, looked_at, of_candidates, excluded[:0])]
        rows = np.asarray(allowed, np.int64)
        if self.score is None or not len(rows):
            return rows, None
        scores, begin = np.empty(len(rows)), 0
        for candidates in self._pieces(pool, state, rows, wanted.iteration):
            scores[begin : begin + len(candidates)] = self.score(self._estimates(state, candidates, key))
            begin += len(candidates)
        places, chances = self.sample.choose(scores, rows, count, _core.rng.structural_seed(key, _SAMPLE))
        return rows[places], chances if len(rows) == len(pool) else None

    def _estimates(self, state: State, candidates: Candidates, key: int) -> NDArray[np.float64]:
        if not self.sample.posterior:
            return self.track.estimate(state["track"], candidates)
        return self.track.posterior_draw(state["track"], candidates, _core.rng.structural_seed(key, _POSTERIOR))

    def _pieces(self, pool: Pool, state: State, rows: NDArray[np.int64], iteration: int) -> Iterator[Candidates]:
        """Yield the candidates of some rows of the pool, a limited number at a time."""
        pieces = [rows[begin : begin + _PIECE] for begin in range(0, len(rows), _PIECE)]
        if len(pieces) < 2:
            yield self._candidates(pool, state, rows, iteration)
            return
        places = _places(pool, state)
        for piece in pieces:
            yield Candidates(pool, piece, places[piece], iteration)

    def _candidates(self, pool: Pool, state: State, rows: NDArray[np.int64], iteration: int) -> Candidates:
        known = state["rows"]
        if len(rows) < len(pool) // 8:
            return Candidates(pool, rows, _core.select.places(known, rows), iteration)
        return Candidates(pool, rows, _places(pool, state)[rows], iteration)

    def _counts(self, pool: Pool, state: State, rows: NDArray[np.int64], wanted: SelectionRequest) -> NDArray[np.int32]:
        if self.count is None or not len(rows):
            return np.full(len(rows), wanted.group_size, np.int32)
        known = self._numbers(state, self._candidates(pool, state, rows, wanted.iteration))
        return self.count.counts(state["count"], known, len(rows) * wanted.group_size)

    def _numbers(self, state: State, candidates: Candidates) -> dict[str, NDArray[np.float64]]:
        columns = self.track.columns(state["track"], candidates)
        numbers = {name: column.astype(np.float64) for name, column in columns.items()}
        return numbers | {"estimate": self.track.estimate(state["track"], candidates)}

    def _arms_of(self, state: State, groups: int, key: int) -> NDArray[np.int32]:
        if self.variant is None:
            return np.full(groups, -1, np.int32)
        return self.variant.choose(state["variant"], groups, _core.rng.structural_seed(key, _VARIANT))

    def columns(self, pool: Pool, state: State, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
        """Return the tracker's columns for some tasks, as of the iteration of the state."""
        state = self.initial_state() | state
        # The tracker is read as of the iteration of the state.
        candidates = self._candidates(pool, state, rows, int(state.get("iteration", 0)))
        return self.track.columns(state["track"], candidates)

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the state after an iteration."""
        state = self.initial_state() | state
        visits, rows = TaskOutcomes.of(closed, state["rows"])
        groups = state["groups"]
        if closed.selection is not None:
            groups += int((closed.selection.purpose == TRAIN).sum())
        following: State = {"rows": rows, "groups": groups, "iteration": closed.iteration + 1}
        following["track"] = self.track.next(state["track"], visits)
        if self.pool is not None:
            epoch = groups // len(closed.pool) if closed.pool is not None and len(closed.pool) else 0
            following["pool"] = self.pool.next(state["pool"], visits, rows, epoch)
        if self.stage is not None:
            following["stage"] = self.stage.next(state["stage"], visits.subset(~visits.survey), closed)
        if self.quota is not None:
            following["quota"] = self.quota.next(state["quota"], closed)
        if self.count is not None:
            following["count"] = self._learned(state, visits.subset(~visits.survey), closed)
        if self.variant is not None:
            following["variant"] = self.variant.next(state["variant"], visits)
        if self.queue is not None:
            following["queue"] = self.queue.next(state["queue"], visits, closed.selection)
        return following

    def _learned(self, state: State, visits: TaskOutcomes, closed: IterationRecord) -> State:
        """Return the allocator's next state, from the numbers that it was given."""
        if self.count is None or closed.pool is None:
            unchanged: State = state["count"]
            return unchanged
        known = Candidates(closed.pool, visits.rows, visits.places, closed.iteration)
        return self.count.next(state["count"], visits, self._numbers(state, known))


def _places(pool: Pool, state: State) -> NDArray[np.int64]:
    """Return the position of each task in the arrays of trackers; -1: not tried yet."""
    places = np.full(len(pool), -1, np.int64)
    places[state["rows"]] = np.arange(len(state["rows"]))
    return places
