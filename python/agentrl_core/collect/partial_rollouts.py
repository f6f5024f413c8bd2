"""Groups in flight: run them until the batch is cut, and carry over the unfinished ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from agentrl_core.collect.batch_policy import BatchPolicy
from agentrl_core.collect.journal import CARRIED, Journal, digest, group_of
from agentrl_core.collect.journal_codec import read_value, write_value
from agentrl_core.collect.token_accounting import TokenCounts
from agentrl_core.engine.base import Request, Segment
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.tasks import cancel
from agentrl_core.select import Selection

if TYPE_CHECKING:
    from agentrl_core.collect.progress import Progress

_LOOK_SECONDS = 0.01
_SETTLED = 2
"""Number of consecutive checks without progress."""


@dataclass(frozen=True, eq=False)
class InFlightGroups:
    """Groups in flight, in the order of their start.

    Attributes:
        selection: selection of each group.
        keys: iteration and place of each group's start.
        statistics: statistics of each task at its start.
        drawn: tokens of each in earlier batches, by the version that generated them.
        undrawn: number of tokens not in any batch yet.
    """

    selection: Selection
    keys: list[tuple[int, int]]
    statistics: list[dict[str, Any]]
    drawn: list[dict[str, int]]
    undrawn: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    def name(self, place: int) -> str:
        """Return the key of a group as a text."""
        return ".".join(map(str, self.keys[place]))

    @classmethod
    def carried(cls, journal: Journal) -> Self:
        """Return the groups carried into an iteration."""
        table = journal.find(CARRIED, digest(CARRIED), read_value)
        if table is None:
            return cls(Selection.of(np.zeros(0, np.int64), 1), [], [], [])
        keys = [(int(began), int(place)) for began, place in table["keys"]]
        return cls(**{**table, "selection": Selection.from_dict(table["selection"]), "keys": keys})

    def joined(self, selection: Selection, first: tuple[int, int], statistics: Sequence[Mapping[str, Any]]) -> Self:
        """Append groups that start now, the first one with this key."""
        began, place = first
        count = len(selection)
        return replace(
            self,
            selection=Selection.concat([self.selection, selection]) if len(self) else selection,
            keys=self.keys + [(began, place + number) for number in range(count)],
            statistics=self.statistics + [_plain(each) for each in statistics],
            drawn=self.drawn + [{} for _ in range(count)],
        )

    def behind(self, landed: BatchCut, said: Mapping[str, TokenCounts]) -> Self:
        """Return groups that continue after a cut, with their token counts."""
        over = {*landed.ended, *landed.dropped}
        places = [place for place in range(len(self)) if place not in over]
        drawn = list(self.drawn)
        for place in landed.unfinished:
            drawn[place] = {str(version): count for version, count in said[self.name(place)].tokens.items()}
        return replace(
            self,
            selection=self.selection.take(np.array(places, np.int64)),
            keys=[self.keys[place] for place in places],
            statistics=[self.statistics[place] for place in places],
            drawn=[drawn[place] for place in places],
        )

    def weighed(self, journal: Journal) -> Self:
        """Return them with the number of tokens not in any batch."""
        drawn = sum(sum(each.values()) for each in self.drawn)
        said = sum(len(segment.tokens) for segment in journal.segments({self.name(row) for row in range(len(self))}))
        return replace(self, undrawn=said - drawn)

    def carry(self, journal: Journal, later: Journal) -> None:
        """Carry them into the next iteration with all their records; the record that confirms this comes last."""
        journal.carry({self.name(place) for place in range(len(self))}, later)
        if CARRIED not in later:
            table = {**vars(self), "selection": self.selection.to_dict()}
            later.keep(CARRIED, digest(CARRIED), table, write_value)


def _plain(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Convert numbers for JSON."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in statistics.items()}


@dataclass(frozen=True)
class BatchCut:
    """Groups in flight after a cut, by their places.

    Attributes:
        ended: finished groups in the batch.
        unfinished: groups in the batch that continue.
        dropped: stopped groups without draws.
    """

    ended: list[int]
    unfinished: list[int]
    dropped: list[int]

    @property
    def stay(self) -> list[int]:
        """Groups in the batch."""
        return sorted(self.ended + self.unfinished + self.dropped)


class RequestGate:
    """Pass requests to engines until a batch is cut, up to a number of tokens per branch.

    Args:
        window: most tokens of a branch in this iteration; None: no limit.
    """

    def __init__(self, window: int | None = None) -> None:
        self._window = window
        self._said: dict[str, int] = {}
        self.closed: frozenset[str] = frozenset()
        """Names of the groups whose requests wait."""
        self.waiting = 0
        """Number of waiting requests."""

    async def enter(self, name: str, request: Request) -> Request:
        """Return the request for the engine, or wait here until the program ends.

        Args:
            name: name of the segment.
            request: request of the program.
        """
        most = request.sampling.max_tokens
        if self._window is not None:
            most = min(most, self._window - self._said.get(name.rpartition("/")[0], 0))
        if most < 1 or (self.closed and group_of(name) in self.closed):
            self.waiting += 1
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.waiting -= 1
        if most == request.sampling.max_tokens:
            return request
        return replace(request, sampling=replace(request.sampling, max_tokens=most))

    def count(self, name: str, segment: Segment) -> None:
        """Count generated tokens of this iteration."""
        branch = name.rpartition("/")[0]
        self._said[branch] = self._said.get(branch, 0) + len(segment.tokens)

    def has_said(self, branch: str) -> bool:
        """Return whether a branch has generated tokens in this iteration."""
        return self._said.get(branch, 0) > 0

    def leave(self, name: str, asked: Request, request: Request, segment: Segment) -> Segment:
        """Return the segment. If the window ended it, it continues like one interrupted by new weights.

        Args:
            name: name of the segment.
            asked: request of the program.
            request: request to the engine.
            segment: its response.
        """
        self.count(name, segment)
        if request is not asked and segment.finish_reason == "length":
            return replace(segment, finish_reason="abort")
        return segment


async def cut_batch(
    groups: Sequence[Group],
    play: Callable[[Group], Any],
    stop: Callable[[], None],
    end: Callable[[BatchCut], None],
    *,
    cut: BatchPolicy,
    gate: RequestGate,
    progress: Progress,
    journal: Journal,
    name: str,
    wanted: int,
    due: set[int],
) -> BatchCut:
    """Run the programs of groups until the batch is cut, and interrupt those that continue.

    The groups of the batch depend on timing. They are recorded before any group is stopped, so that a resumed run has
    the same.

    Args:
        groups: groups in flight.
        play: runs the program of a group to its end.
        stop: stops segments being generated.
        end: finishes the groups of the batch, before the programs end.
        cut: rule for the cut.
        gate: gate of requests.
        progress: counts of the collection.
        journal: journal of the iteration.
        name: name of the record.
        wanted: number of needed groups.
        due: groups that cannot be carried over again.
    """
    table = journal.find(name, digest(name), read_value)
    landed = None if table is None else BatchCut(**table)
    here = range(len(groups)) if landed is None else landed.stay
    if landed is not None:
        gate.closed = frozenset(groups[place].name for place in here if place not in landed.ended)
    running = {asyncio.ensure_future(play(groups[place])): place for place in here}
    ended: list[int] = []

    async def settles() -> bool:
        """Wait until a group ends (False), or until nothing moves (True)."""
        quiet = 0
        while live := [task for task in running if not task.done()]:
            quiet = 0 if progress.at_engine or progress.at_environment else quiet + 1
            if gate.waiting and quiet > _SETTLED:
                return True
            done, _ = await asyncio.wait(live, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=running.__getitem__):
                task.result()
                ended.append(running[task])
            if done:
                return False
        return True

    try:
        if landed is None:
            landed = await _cut(settles, ended, groups, cut, min(wanted, len(groups)), due)
            journal.keep(name, digest(name), vars(landed), write_value)
            gate.closed = frozenset(group.name for group in groups)
            while progress.at_engine:
                stop()
                await asyncio.sleep(_LOOK_SECONDS)
        while len(ended) < len(landed.ended) and not await settles():
            pass
        while (landed.unfinished or landed.dropped) and not await settles():
            pass
        end(landed)
    finally:
        await cancel(running)
    return landed


async def _cut(
    settles: Callable[[], Any], ended: list[int], groups: Sequence[Group], cut: BatchPolicy, wanted: int, due: set[int]
) -> BatchCut:
    """Wait until the batch is cut, and return the cut."""
    while True:
        settled = await settles()
        if cut.max_new_tokens is not None:
            if settled:
                unfinished = [place for place, group in enumerate(groups) if place not in ended and _has_said(group)]
                return BatchCut(sorted(ended), unfinished, [])
            continue
        chosen = cut.select_groups(ended, wanted=wanted, due=due)
        if chosen is not None:
            return BatchCut(chosen, [], sorted(due.difference(chosen)) if cut.stragglers == "drop" else [])


def _has_said(group: Group) -> bool:
    """Return whether any trajectory of an unfinished group can be drawn."""
    return any(branch.path.length and not branch.over for branch in group.branches)
