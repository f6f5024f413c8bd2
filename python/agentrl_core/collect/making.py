"""How the batch of an iteration is made: select, roll out, reward, inject, admit, until it is full."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.collect.again import Again, group_ids, matching
from agentrl_core.collect.cut import Cut
from agentrl_core.collect.flight import Flight
from agentrl_core.collect.iteration import BROKEN, COLUMNS, SAID, Made, draw_columns
from agentrl_core.collect.journal import Journal, digest, read_value, write_value
from agentrl_core.collect.progress import Progress
from agentrl_core.collect.runner import Runner
from agentrl_core.collect.said import Account, Said
from agentrl_core.component.state import SELECTION, State, packed
from agentrl_core.data.batch import Batch
from agentrl_core.data.old_logprobs import with_old_logprobs
from agentrl_core.data.store import Store
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe, place_of
from agentrl_core.replay.draws import NEW, Draws
from agentrl_core.replay.replay import Replay
from agentrl_core.rollout.program import Rollout
from agentrl_core.select import Pool, Selection, Wanted
from agentrl_core.select.selection import SURVEY, TRAIN
from agentrl_core.select.visits import entries_of

_INJECT, _MIX = 1, 2
"""Keys of the two moments at which replay draws."""


@dataclass(frozen=True)
class Begin:
    """What an iteration begins with, which stays as it is until the iteration is closed.

    Attributes:
        iteration: its number.
        recipe: with a number wherever it has a schedule or a controller.
        states: what the components remember, by their places.
        pool: the tasks, with what is known of them.
        seed: of the run.
        store: where stored trajectories are read; None: there are none.
    """

    iteration: int
    recipe: Recipe
    states: Mapping[str, State]
    pool: Pool
    seed: int
    store: Store | None

    def state(self, phase: str, place: int, component: Any) -> State:
        """What a component remembers."""
        state = self.states.get(place_of(phase, place, component))
        return component.initial_state() if state is None else state


@dataclass(frozen=True)
class Flying:
    """How groups are run that may go on behind the iteration's batch.

    Attributes:
        cut: when the batch is cut.
        runner: makes one for each round.
        programs: what is run on groups that began in an iteration.
        statistics: what is known of a task, by its id.
        later: the journal of the next iteration.
    """

    cut: Cut
    runner: Callable[[], Runner]
    programs: Callable[[int], Rollout]
    statistics: Callable[[str], Mapping[str, Any]]
    later: Callable[[], Journal]


class Gathered:
    """The batch of an iteration as it comes together, round by round: rewarded, injected, admitted.

    Args:
        begin: what the iteration began with.
        reward: phase reward, by the states of the iteration's begin.
    """

    def __init__(self, begin: Begin, reward: Callable[[Batch], Batch]) -> None:
        self._begin = begin
        self._reward = reward
        self._parts: list[Batch] = []
        self._places: dict[str, int] = {}
        self._domains: dict[str, str] = {}
        self._drawn = self._known = self._seen = self._judged = 0
        self._rewarded = False
        self._broken = {"failed": 0, "abandoned": 0}
        self.admitted = 0
        self.selections: list[Selection] = []
        self.account = Account()

    def chose(self, rows: NDArray[np.int64]) -> None:
        """These rows of the pool are rolled out."""
        pool = self._begin.pool
        self._places.update(zip(pool.ids(rows), rows.tolist(), strict=True))
        self._domains.update((task.task_id, task.domain) for _, task in pool.tasks(rows))

    def survey(self, fresh: Batch) -> None:
        """Keep groups that nobody draws."""
        self._parts.append(fresh.select_draws(np.zeros(0, np.int64)))

    def admit(self, fresh: Batch, selection: Selection, again: Again) -> Again:
        """Let the recipe admit groups; the rejected ones whose tasks are tried again.

        Args:
            fresh: what was rolled out.
            selection: what for.
            again: what its first rows tried again.
        """
        admission, held = self._begin.recipe.admit, 0
        entries = np.full(fresh.num_groups, -1)
        if admission.becomes(0) != "replace":
            first = np.unique(fresh.keys("group_id", "draw"), return_index=True)[1]
            tasks = fresh.texts("task_id", "draw")
            entries = entries_of([tasks[row] for row in first], selection, self._begin.pool)
        if again.extends and fresh.num_draws:
            before = self._parts.pop(self._judged)
            held = before.num_groups
            fresh, entries = again.joined(before, fresh, entries)
        batch = _injected(self._begin, self._score(fresh), self._score, self._seen, held)
        groups, scores = batch.keys("group_id", "draw"), batch.column("score", "draw")
        self._drawn, self._known = self._drawn + len(scores), self._known + int(np.isfinite(scores).sum())
        self._rewarded = self._rewarded or bool(np.isfinite(batch.column("reward", "draw")).any())
        # Groups stand in the order of their keys, whichever ended first.
        accepted = admission(scores, groups) | (np.arange(batch.num_groups) < held)
        self._seen += len(accepted) - held
        self._judged = len(self._parts)
        self._parts.append(batch if accepted.all() else batch.select_draws(np.flatnonzero(accepted[groups])))
        self.admitted += int(accepted.sum()) - held
        if admission.becomes(0) == "replace":
            return again
        rejected = ~np.isin(matching(fresh, batch), group_ids(batch)[accepted])
        return Again.of(fresh, rejected, entries, selection, again, admission)

    def ran(self, progress: Progress) -> None:
        """Note what broke down meanwhile."""
        self._broken["failed"] += progress.failed
        self._broken["abandoned"] += progress.abandoned

    def made(self, group_size: int) -> Made:
        """The batch: what was admitted, with what replay mixes in."""
        begin, parts = self._begin, self._parts
        batch = parts[0] if len(parts) == 1 else Batch.concat(parts)
        # A restart scores the batch as a whole, so what came in rounds or was cut is scored again for equal scores.
        batch = parts[0] if len(parts) == 1 and batch.num_draws == self._drawn else self._score(batch)
        batch = with_old_logprobs(_mixed(begin, batch, self._score), begin.recipe.old_logprob)
        said = Selection.concat(self.selections) if self.selections else Selection.of(np.zeros(0, np.int64), group_size)
        state = {
            **batch.state,
            SELECTION: said.to_dict(),
            COLUMNS: packed(draw_columns(batch)),
            BROKEN: self._broken,
            SAID: vars(self.account),
        }
        return Made(batch.with_state(state), self._domains, self._drawn, self._known, self._rewarded)

    def _score(self, batch: Batch) -> Batch:
        return self._reward(_with_tasks(self._begin, batch, self._places))


def make_batch(
    begin: Begin, runner: Runner, journal: Journal, reward: Callable[[Batch], Batch], tasks: int, group_size: int
) -> Made:
    """Select, roll out, reward, inject, admit, until enough groups are admitted; then mix, and score what was joined.

    Args:
        begin: what the iteration began with.
        runner: runs programs.
        journal: of the iteration; a selection is in it before its first rollout begins.
        reward: phase reward, by the states of the iteration's begin.
        tasks: how many groups are wanted.
        group_size: trajectories of a group, where the selector does not say.
    """
    gathered, again = Gathered(begin, reward), Again.nothing()
    taken, first = np.zeros(0, np.int64), 0
    for number in range(begin.recipe.admit.rounds):
        selection, missing = again.selection, tasks - gathered.admitted - len(again)
        if missing > 0:
            wanted = Wanted(missing, group_size, number, taken, begin.iteration)
            others = _selected(begin, journal, wanted)
            taken = np.concatenate([taken, others.rows])
            selection = Selection.concat([selection, others]) if len(again) else others
        if not len(selection):
            break
        gathered.selections.append(selection)
        gathered.chose(selection.rows)
        for purpose in (TRAIN, SURVEY):
            rows = np.flatnonzero(selection.purpose == purpose)
            if not len(rows):
                continue
            fresh = runner.roll_out(
                begin.pool.tasks(selection.rows[rows]),
                selection.counts[rows].tolist(),
                first=first,
                variants=selection.variants[rows].tolist(),
            )
            first += len(rows)
            if purpose == SURVEY:
                gathered.survey(fresh)
            else:
                again = gathered.admit(fresh, selection.take(rows), again)
        if gathered.admitted >= tasks:
            break
    gathered.ran(runner.progress)
    gathered.account.consume(runner.said.values(), begin.iteration)
    gathered.account.balance(before=0)
    return gathered.made(group_size)


def cut_batch(
    begin: Begin, flying: Flying, journal: Journal, reward: Callable[[Batch], Batch], tasks: int, group_size: int
) -> Made:
    """The same of groups that are in flight: those that were carried into the iteration, and new ones for the rest.

    What is in flight when the batch is cut is in the journal of the next iteration before this returns.

    Args:
        begin: what the iteration began with.
        flying: how groups are run, and when the batch is cut.
        journal: of the iteration.
        reward: phase reward, by the states of the iteration's begin.
        tasks: how many groups are wanted.
        group_size: trajectories of a group, where the selector does not say.

    Raises:
        RecipeError: the recipe surveys tasks, or tries rejected ones again.
    """
    cut = flying.cut
    if begin.recipe.admit.becomes(0) != "replace":
        raise RecipeError(
            f"recipe {begin.recipe.name!r}: {begin.recipe.admit.title()} tries rejected tasks again, and with {cut} "
            "groups are taken one by one; leave cut out, or replace them"
        )
    gathered, account = Gathered(begin, reward), Account()
    gathered.account = account
    flight = Flight.carried(journal)
    before, taken, first = flight.undrawn, flight.selection.rows, 0
    for number in range(begin.recipe.admit.rounds):
        missing = cut.in_flight(tasks - gathered.admitted) - len(flight)
        if missing > 0:
            selection = _selected(begin, journal, Wanted(missing, group_size, number, taken, begin.iteration))
            if (selection.purpose == SURVEY).any():
                raise RecipeError(
                    f"recipe {begin.recipe.name!r}: {begin.recipe.select.title()} surveys tasks, and with "
                    f"{cut} groups are taken one by one; leave cut out"
                )
            statistics = [flying.statistics(task.task_id) for _, task in begin.pool.tasks(selection.rows)]
            flight = flight.joined(selection, (begin.iteration, first), statistics)
            first, taken = first + len(selection), np.concatenate([taken, selection.rows])
        if not len(flight):
            break
        gathered.chose(flight.selection.rows)
        runner = flying.runner()
        fresh, landed = runner.fly(
            begin.pool.tasks(flight.selection.rows),
            flight,
            programs=flying.programs,
            cut=cut,
            number=number,
            wanted=tasks - gathered.admitted,
        )
        gathered.ran(runner.progress)
        over = sorted(landed.ended + landed.dropped)
        gathered.selections.append(flight.selection.take(np.array(over, np.int64)))
        for place in landed.stay:
            said = runner.said.get(flight.name(place), Said())
            if place in landed.dropped:
                account.dropped += said.behind(flight.drawn[place]).tokens.total()
            else:
                account.consume([said.behind(flight.drawn[place])], begin.iteration)
        flight = flight.behind(landed, runner.said)
        if landed.stay:
            fresh = fresh if cut.window is None else _with_success(fresh)
            gathered.admit(fresh, flight.selection, Again.nothing())
        if gathered.admitted >= tasks or cut.window is not None:
            break
    flight = flight.weighed(journal)
    account.in_flight = flight.undrawn
    account.balance(before)
    flight.carry(journal, flying.later())
    return gathered.made(group_size)


def _with_success(batch: Batch) -> Batch:
    """The batch with a column `success` on draws that is NaN where a window has cut them."""
    table = batch.trajectories
    ids, success = table.column("trajectory_id"), np.asarray(table.column("success"), np.float32)
    rows = np.searchsorted(ids, batch.column("trajectory_id", "draw"))
    return batch.with_columns("draw", success=success[rows])


def _with_tasks(begin: Begin, batch: Batch, places: Mapping[str, int]) -> Batch:
    """The batch with what the selector knows of the draws' tasks, as columns `task_<name>`."""
    select = begin.recipe.select
    rows = np.array([places.get(task, -1) for task in batch.texts("task_id", "draw")], np.int64)
    known = np.flatnonzero(rows >= 0)
    columns = select.columns(begin.pool, begin.state("select", 0, select), rows[known]) if len(known) else {}
    made: dict[str, NDArray[np.float32]] = {}
    for name, values in columns.items():
        made[f"task_{name}"] = np.full(len(rows), np.nan, np.float32)
        made[f"task_{name}"][known] = values
    return batch.with_columns("draw", **made) if made else batch


def _selected(begin: Begin, journal: Journal, wanted: Wanted) -> Selection:
    """What select answers, which is in the journal before anything of it is rolled out."""
    select = begin.recipe.select
    asked = (select.to_dict(), wanted.groups, wanted.group_size, len(begin.pool), begin.seed)
    name, question = f"selection/{wanted.round}", digest(json.dumps(asked))
    recorded = journal.find(name, question, read_value)
    if recorded is None:
        key = _core.rng.structural_seed(begin.seed, begin.iteration)
        selection = select.choose(begin.pool, begin.state("select", 0, select), wanted, key)
        if not isinstance(selection, Selection):
            raise RecipeError(f"{select.title()}: choose returned {selection!r:.60}; return a select.Selection")
        selection.check(len(begin.pool), select.title())
        recorded = selection.take(np.argsort(selection.purpose, kind="stable")).to_dict()  # surveys behind the others
        journal.keep(name, question, recorded, write_value)
    return Selection.from_dict(recorded)


def _injected(begin: Begin, batch: Batch, score: Callable[[Batch], Batch], before: int, held: int) -> Batch:
    """The batch with what replay injects into its groups but the first ones, in the order of their keys, scored again.

    Args:
        begin: what the iteration began with.
        batch: the round.
        score: phase reward.
        before: how many groups were judged in the rounds before.
        held: how many groups of the batch were judged before, which stay as they are.
    """
    for place, replay in enumerate(cast("tuple[Replay, ...]", begin.recipe.chain("replay"))):
        state, groups = begin.state("replay", place, replay), batch.keys("group_id", "draw")
        found: list[Draws] = []
        for group in range(held, len(np.unique(groups))):
            rows = np.flatnonzero(groups == group)
            key = _core.rng.structural_seed(begin.seed, begin.iteration, _INJECT, place, before + group - held)
            draws = replay.inject(state, batch.select_draws(rows), key)
            if draws is not None and len(draws.trajectory_ids):
                found.append(_moved(draws, rows, sum(_new_groups(each) for each in found)))
        if found:
            batch = score(_joined(begin, batch, _together(found)))
    return batch


def _mixed(begin: Begin, batch: Batch, score: Callable[[Batch], Batch]) -> Batch:
    """The batch with what replay mixes into it."""
    for place, replay in enumerate(cast("tuple[Replay, ...]", begin.recipe.chain("replay"))):
        key = _core.rng.structural_seed(begin.seed, begin.iteration, _MIX, place)
        draws = replay.mix(begin.state("replay", place, replay), batch, key)
        if draws is not None and len(draws.trajectory_ids):
            batch = score(_joined(begin, batch, draws))
    return batch


def _joined(begin: Begin, batch: Batch, draws: Draws) -> Batch:
    store = cast("Store", begin.store)  # a collector with replay has one
    stored = store.trajectory_batch(np.unique(draws.trajectory_ids[draws.trajectory_ids >= 0]))
    return batch.join(stored, draws)


def _moved(draws: Draws, rows: NDArray[np.int64], groups: int) -> Draws:
    """Draws that joined a group, as they join the batch in which the group has these rows."""
    replaces = np.where(draws.replaces >= 0, rows[np.maximum(draws.replaces, 0)], -1)
    ids = draws.trajectory_ids
    again = np.where(ids < 0, -1 - rows[np.maximum(-1 - ids, 0)], ids)
    columns = {name: getattr(draws, name) for name in draws.__dataclass_fields__}
    moved = {"trajectory_ids": again, "replaces": replaces, "new_group": draws.new_group + np.int32(groups)}
    return Draws(**columns | moved)


def _new_groups(draws: Draws) -> int:
    """How many groups of their own some draws make, by the largest number."""
    new = draws.new_group[draws.votes_in == NEW]
    return int(new.max()) + 1 if len(new) else 0


def _together(parts: list[Draws]) -> Draws:
    """The draws of several groups, one after the other."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for name in Draws.__dataclass_fields__:
        values = [getattr(part, name) for part in parts]
        if name == "columns":
            names = dict.fromkeys(key for each in values for key in each)
            lengths = [len(part.trajectory_ids) for part in parts]
            columns[name] = {
                key: np.concatenate(
                    [each.get(key, np.full(n, np.nan, np.float32)) for each, n in zip(values, lengths, strict=True)]
                )
                for key in names
            }
        elif name == "reason":
            columns[name] = [text for each in values for text in each]
        elif any(value is None for value in values):
            columns[name] = None
        else:
            columns[name] = np.concatenate(values)
    return Draws(**columns)
