"""Groups in flight: run them until the batch is cut, and carry over the unfinished ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from agentrl_core.collect.batch_builder import BatchBuilder, select
from agentrl_core.collect.batch_policy import BatchPolicy
from agentrl_core.collect.iteration import IterationInputs, TokenCounts, TokenLedger
from agentrl_core.collect.rollout_driver import CollectionSettings, RolloutDriver
from agentrl_core.collect.rollout_log import CARRIED, IterationLog, digest, group_of, read_value, write_value
from agentrl_core.data.batch import Batch
from agentrl_core.engine.base import Engine, Request, Segment
from agentrl_core.env.base import Task
from agentrl_core.exceptions import RecipeError
from agentrl_core.rollout.async_tasks import cancel
from agentrl_core.rollout.branch_edits import truncate
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.program import Rollout
from agentrl_core.select import Selection, SelectionRequest
from agentrl_core.select.selector import SURVEY

_LOOK_SECONDS = 0.01
_SETTLED = 2
"""Number of consecutive checks without progress."""
_HELD = 1 << 21
"""Member number that keeps a group from being frozen, unused otherwise."""


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
    def carried(cls, log: IterationLog) -> Self:
        """Return the groups carried into an iteration."""
        table = log.find(CARRIED, digest(CARRIED), read_value)
        if table is None:
            return cls(Selection.of(np.zeros(0, np.int64), 1), [], [], [])
        keys = [(int(began), int(place)) for began, place in table["keys"]]
        return cls(**{**table, "selection": Selection.from_dict(table["selection"]), "keys": keys})

    def joined(self, selection: Selection, first: tuple[int, int], statistics: Sequence[Mapping[str, Any]]) -> Self:
        """Append groups that start now; the first of them gets the given key."""
        began, place = first
        count = len(selection)
        return replace(
            self,
            selection=Selection.concat([self.selection, selection]) if len(self) else selection,
            keys=self.keys + [(began, place + number) for number in range(count)],
            statistics=self.statistics + [_plain(each) for each in statistics],
            drawn=self.drawn + [{} for _ in range(count)],
        )

    def remaining(self, cut: BatchCut, counts: Mapping[str, TokenCounts]) -> Self:
        """Return groups that continue after a cut, with their token counts."""
        over = {*cut.ended, *cut.dropped}
        places = [place for place in range(len(self)) if place not in over]
        drawn = list(self.drawn)
        for place in cut.unfinished:
            drawn[place] = {str(version): count for version, count in counts[self.name(place)].tokens.items()}
        return replace(
            self,
            selection=self.selection.take(np.array(places, np.int64)),
            keys=[self.keys[place] for place in places],
            statistics=[self.statistics[place] for place in places],
            drawn=[drawn[place] for place in places],
        )

    def weighed(self, log: IterationLog) -> Self:
        """Return the groups with the number of their tokens that are in no batch."""
        drawn = sum(sum(each.values()) for each in self.drawn)
        generated = sum(len(segment.tokens) for segment in log.segments({self.name(row) for row in range(len(self))}))
        return replace(self, undrawn=generated - drawn)

    def carry(self, log: IterationLog, later: IterationLog) -> None:
        """Copy the groups with all their records to the log of the next iteration; a final record confirms the copy."""
        log.carry({self.name(place) for place in range(len(self))}, later)
        if CARRIED not in later:
            table = {**vars(self), "selection": self.selection.to_dict()}
            later.keep(CARRIED, digest(CARRIED), table, write_value)


def _plain(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Convert numbers for JSON."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in statistics.items()}


@dataclass(frozen=True)
class BatchCut:
    """The groups in a batch at its cut, by their indices in flight: ended, unfinished and dropped ones.

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
        """Indices of all groups in the batch, with unfinished and dropped ones."""
        return sorted(self.ended + self.unfinished + self.dropped)


class PartialRolloutDriver(RolloutDriver):
    """Runs groups in flight until a batch is cut, and interrupts those that continue.

    Requests wait after the cut, and after `max_new_tokens` of their branch.

    Args:
        policy: rule for the cut.
        flight: the groups.
        driver: the arguments of `RolloutDriver`.
    """

    def __init__(self, policy: BatchPolicy, flight: InFlightGroups, *driver: Any, iteration: int) -> None:
        super().__init__(*driver, iteration=iteration)
        self._policy = policy
        self._flight = flight
        self._sampled_tokens: Counter[str] = Counter()
        """Tokens of this iteration, by branch."""
        self._closed: frozenset[str] = frozenset()
        """Names of the groups whose requests wait."""
        self._waiting = 0
        """Number of waiting requests."""
        self._began: dict[str, Mapping[str, Any]] = {}
        """Statistics of a task at the start of its group."""

    def roll_out_in_flight(
        self,
        chosen: Sequence[tuple[str, Task]],
        *,
        programs: Callable[[int], Rollout],
        number: int,
        wanted: int,
    ) -> tuple[Batch, BatchCut]:
        """Run the groups until the batch is cut; return the frozen groups of the batch, and the cut.

        Args:
            chosen: the task of each group, with the name of its world.
            programs: returns the program for groups that started in an iteration.
            number: number of the cut in this iteration.
            wanted: number of needed groups.
        """
        cut = self.run(lambda: self._roll_out_in_flight(chosen, programs, f"cut/{number}", wanted))
        return self.forest.freeze(), cut

    async def _roll_out_in_flight(
        self, chosen: Sequence[tuple[str, Task]], programs: Callable[[int], Rollout], name: str, wanted: int
    ) -> BatchCut:
        groups, flight, selection = [], self._flight, self._flight.selection
        for place, ((world, task), key) in enumerate(zip(chosen, flight.keys, strict=True)):
            self._began[task.task_id] = flight.statistics[place]
            size, variant = int(selection.counts[place]), int(selection.variants[place])
            group = self._group(world, task, size, variant, key, place)
            group.program = programs(key[0])
            groups.append(group)
        cut = await self._cut_batch(groups, name, wanted)
        stay = {groups[place].name for place in cut.stay}
        for number, selected in self._selected.values():
            if selected not in stay:
                # Running trajectories are not frozen.
                self.forest.start(number, _HELD, role="helper")
        self._end([groups[place] for place in cut.stay])
        return cut

    async def _cut_batch(self, groups: Sequence[Group], name: str, wanted: int) -> BatchCut:
        """Run the programs of groups until the batch is cut, and interrupt those that continue.

        The groups of the batch depend on timing. They are recorded before any group is stopped, so that a resumed run
        has the same.

        Args:
            groups: groups in flight.
            name: name of the record.
            wanted: number of needed groups.
        """
        table = self._log.find(name, digest(name), read_value)
        cut = None if table is None else BatchCut(**table)
        here = range(len(groups)) if cut is None else cut.stay
        if cut is not None:
            self._closed = frozenset(groups[place].name for place in here if place not in cut.ended)
        running = {
            asyncio.ensure_future(self._play(groups[place], groups[place].program.group)): place for place in here
        }
        ended: list[int] = []

        async def settles() -> bool:
            """Wait until a group ends (False), or until no group makes progress (True)."""
            quiet = 0
            while live := [task for task in running if not task.done()]:
                quiet = 0 if self.progress.at_engine or self.progress.at_environment else quiet + 1
                if self._waiting and quiet > _SETTLED:
                    return True
                done, _ = await asyncio.wait(live, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=running.__getitem__):
                    task.result()
                    ended.append(running[task])
                if done:
                    return False
            return True

        try:
            if cut is None:
                cut = await self._cut(settles, ended, groups, min(wanted, len(groups)))
                self._log.keep(name, digest(name), vars(cut), write_value)
                self._closed = frozenset(group.name for group in groups)
                while self.progress.at_engine:
                    for request in list(self._requests):
                        self.stop(request)
                    await asyncio.sleep(_LOOK_SECONDS)
            while len(ended) < len(cut.ended) and not await settles():
                pass
            while (cut.unfinished or cut.dropped) and not await settles():
                pass
            self._end_early(groups, cut)
        finally:
            await cancel(running)
        return cut

    async def _cut(
        self, settles: Callable[[], Any], ended: list[int], groups: Sequence[Group], wanted: int
    ) -> BatchCut:
        """Wait until the batch is cut, and return the cut."""
        policy, now = self._policy, self.forest.iteration
        # Groups that cannot be carried over again.
        due = {place for place, (began, _) in enumerate(self._flight.keys) if policy.is_due(now - began)}
        while True:
            settled = await settles()
            if policy.max_new_tokens is not None:
                if settled:
                    unfinished = [
                        place for place, group in enumerate(groups) if place not in ended and _has_sampled(group)
                    ]
                    return BatchCut(sorted(ended), unfinished, [])
                continue
            chosen = policy.select_groups(ended, wanted=wanted, due=due)
            if chosen is not None:
                return BatchCut(chosen, [], sorted(due.difference(chosen)) if policy.stragglers == "drop" else [])

    def _end_early(self, groups: Sequence[Group], cut: BatchCut) -> None:
        """Drop or truncate the branches that the cut leaves unfinished or that an earlier batch has."""
        for place in cut.stay:
            groups[place]._deliver()  # noqa: SLF001 -- as its program would
            for branch in groups[place].branches:
                if place in cut.dropped:
                    branch.drop("late")
                elif branch.over and self._flight.drawn[place] and not self._sampled_tokens[branch.name]:
                    branch.drop("it ended in an earlier window, whose batch has it")
                elif place in cut.unfinished:
                    truncate(branch, "the window is over")

    def statistics(self, task_id: str) -> Mapping[str, Any]:
        """Return the statistics of a task, as of the start of its group."""
        return self._began[task_id] if task_id in self._began else super().statistics(task_id)

    def _recorded(self, name: str, key: bytes) -> Segment | None:
        """Return the segment of a request in the rollout log, or None, and count tokens of this iteration."""
        recorded = super()._recorded(name, key)
        if recorded is not None and not self._log.is_carried(name):
            self._sampled_tokens[name.rpartition("/")[0]] += len(recorded.tokens)
        return recorded

    async def _sample(self, name: str, engine: Engine, request: Request) -> Segment:
        """Return the engine's response within the token window; after it or after the cut, wait to be cancelled.

        If the window ended it, it continues like one interrupted by new weights.
        """
        most, window, branch = request.sampling.max_tokens, self._policy.max_new_tokens, name.rpartition("/")[0]
        if window is not None:
            most = min(most, window - self._sampled_tokens[branch])
        if most < 1 or (self._closed and group_of(name) in self._closed):
            self._waiting += 1
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._waiting -= 1
        shorter = most < request.sampling.max_tokens
        if shorter:
            request = replace(request, sampling=replace(request.sampling, max_tokens=most))
        segment = await super()._sample(name, engine, request)
        self._sampled_tokens[branch] += len(segment.tokens)
        return replace(segment, finish_reason="abort") if shorter and segment.finish_reason == "length" else segment


def make_partial_batch(
    inputs: IterationInputs,
    settings: CollectionSettings,
    policy: BatchPolicy,
    log: IterationLog,
    later: Callable[[], IterationLog],
    tasks: int,
    group_size: int,
) -> BatchBuilder:
    """Build the batch from groups in flight: carried-over groups, and new ones for the rest.

    Groups in flight at the cut are in the rollout log of the next iteration before this returns.

    Args:
        inputs: inputs of the iteration.
        settings: settings of the collection.
        policy: rule for the cut.
        log: rollout log of the iteration.
        later: the rollout log of the next iteration.
        tasks: number of requested groups.
        group_size: trajectories of a group, unless the selector chooses.

    Raises:
        RecipeError: the recipe surveys tasks, or retries rejected ones.
    """
    recipe, head = inputs.now, inputs.head
    if recipe.admit.becomes(0) != "replace":
        raise RecipeError(
            f"recipe {recipe.name!r}: {recipe.admit.title()} retries rejected tasks, which {policy} does not "
            'support; omit batch_policy, or set rejected="replace"'
        )
    builder, ledger = BatchBuilder(inputs), TokenLedger()
    builder.ledger = ledger
    flight = InFlightGroups.carried(log)
    before, taken, first = flight.undrawn, flight.selection.rows, 0
    for number in range(recipe.admit.rounds):
        missing = policy.in_flight(tasks - builder.admitted) - len(flight)
        if missing > 0:
            selection = select(inputs, log, SelectionRequest(missing, group_size, number, taken, inputs.iteration))
            if (selection.purpose == SURVEY).any():
                raise RecipeError(
                    f"recipe {recipe.name!r}: {recipe.select.title()} surveys tasks, which {policy} does not "
                    f"support; omit batch_policy"
                )
            statistics = [head.statistics(task.task_id) for _, task in inputs.pool.tasks(selection.rows)]
            flight = flight.joined(selection, (inputs.iteration, first), statistics)
            first, taken = first + len(selection), np.concatenate([taken, selection.rows])
        if not len(flight):
            break
        builder.add_selection(flight.selection.rows)
        driver = PartialRolloutDriver(
            policy, flight, settings, recipe, head, log, inputs.score, iteration=inputs.iteration
        )
        fresh, cut = driver.roll_out_in_flight(
            inputs.pool.tasks(flight.selection.rows),
            programs=lambda began: inputs.recipe.at(began, head.components).rollout,
            number=number,
            wanted=tasks - builder.admitted,
        )
        builder.add_failures(driver.progress)
        over = sorted(cut.ended + cut.dropped)
        builder.selections.append(flight.selection.take(np.array(over, np.int64)))
        for place in cut.stay:
            counts = driver.token_counts.get(flight.name(place), TokenCounts())
            if place in cut.dropped:
                ledger.dropped += counts.undrawn(flight.drawn[place]).tokens.total()
            else:
                ledger.consume([counts.undrawn(flight.drawn[place])], inputs.iteration)
        flight = flight.remaining(cut, driver.token_counts)
        if cut.stay:
            builder.admit(fresh if policy.max_new_tokens is None else _with_success(fresh), flight.selection)
        if builder.admitted >= tasks or policy.max_new_tokens is not None:
            break
    flight = flight.weighed(log)
    ledger.in_flight = flight.undrawn
    ledger.balance(before)
    flight.carry(log, later())
    return builder.build(group_size)


def _with_success(batch: Batch) -> Batch:
    """Add a column `success` on draws, NaN for draws cut by a window."""
    table = batch.trajectories
    ids, success = table.column("trajectory_id"), np.asarray(table.column("success"), np.float32)
    rows = np.searchsorted(ids, batch.column("trajectory_id", "draw"))
    return batch.with_columns("draw", success=success[rows])


def _has_sampled(group: Group) -> bool:
    """Return whether a group has a branch that is running and has tokens."""
    return any(branch.path.length and not branch.over for branch in group.branches)
