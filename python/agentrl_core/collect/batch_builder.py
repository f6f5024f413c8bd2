"""How the batch of an iteration is made: select, roll out, reward, inject, admit, until it is full."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.collect.batch_policy import BatchPolicy
from agentrl_core.collect.group_retry import GroupRetries, group_ids, matching
from agentrl_core.collect.iteration import BROKEN, COLUMNS, SAID, BuiltBatch, IterationInputs, draw_columns
from agentrl_core.collect.journal import Journal, digest
from agentrl_core.collect.journal_codec import read_value, write_value
from agentrl_core.collect.partial_rollouts import InFlightGroups
from agentrl_core.collect.progress import Progress
from agentrl_core.collect.runner import ProgramRunner
from agentrl_core.collect.token_accounting import TokenCounts, TokenLedger
from agentrl_core.component.state import SELECTION, pack_state
from agentrl_core.data.batch import Batch
from agentrl_core.data.old_logprobs import with_old_logprobs
from agentrl_core.exceptions import RecipeError
from agentrl_core.rollout.program import Rollout
from agentrl_core.select import Selection, SelectionRequest
from agentrl_core.select.selection import SURVEY, TRAIN
from agentrl_core.select.task_outcomes import entries_of


@dataclass(frozen=True)
class PartialRollouts:
    """How groups are run that may go on behind the iteration's batch.

    Attributes:
        cut: when the batch is cut.
        runner: makes one for each round.
        programs: what is run on groups that began in an iteration.
        statistics: what is known of a task, by its id.
        later: the journal of the next iteration.
    """

    batch_policy: BatchPolicy
    runner: Callable[[], ProgramRunner]
    programs: Callable[[int], Rollout]
    statistics: Callable[[str], Mapping[str, Any]]
    later: Callable[[], Journal]


class BatchBuilder:
    """The batch of an iteration as it comes together, round by round: rewarded, injected, admitted.

    Args:
        begin: what the iteration began with.
        reward: phase reward, by the states of the iteration's begin.
    """

    def __init__(self, begin: IterationInputs, reward: Callable[[Batch], Batch]) -> None:
        self._begin = begin
        self._reward = reward
        self._replay = begin.replay()
        self._parts: list[Batch] = []
        self._places: dict[str, int] = {}
        self._domains: dict[str, str] = {}
        self._drawn = self._known = self._seen = self._judged = 0
        self._rewarded = False
        self._broken = {"failed": 0, "abandoned": 0}
        self.admitted = 0
        self.selections: list[Selection] = []
        self.account = TokenLedger()

    def chose(self, rows: NDArray[np.int64]) -> None:
        """These rows of the pool are rolled out."""
        pool = self._begin.pool
        self._places.update(zip(pool.ids(rows), rows.tolist(), strict=True))
        self._domains.update((task.task_id, task.domain) for _, task in pool.tasks(rows))

    def survey(self, fresh: Batch) -> None:
        """Keep groups that nobody draws."""
        self._parts.append(fresh.select_draws(np.zeros(0, np.int64)))

    def admit(self, fresh: Batch, selection: Selection, again: GroupRetries) -> GroupRetries:
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
        batch = self._replay.inject(self._score(fresh), self._score, self._seen, held)
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
        return GroupRetries.of(fresh, rejected, entries, selection, again, admission)

    def ran(self, progress: Progress) -> None:
        """Note what broke down meanwhile."""
        self._broken["failed"] += progress.failed
        self._broken["abandoned"] += progress.abandoned

    def made(self, group_size: int) -> BuiltBatch:
        """The batch: what was admitted, with what replay mixes in."""
        begin, parts = self._begin, self._parts
        batch = parts[0] if len(parts) == 1 else Batch.concat(parts)
        # A restart scores the batch as a whole, so what came in rounds or was cut is scored again for equal scores.
        batch = parts[0] if len(parts) == 1 and batch.num_draws == self._drawn else self._score(batch)
        batch = with_old_logprobs(self._replay.mix(batch, self._score), begin.recipe.old_logprob)
        said = Selection.concat(self.selections) if self.selections else Selection.of(np.zeros(0, np.int64), group_size)
        state = {
            **batch.state,
            SELECTION: said.to_dict(),
            COLUMNS: pack_state(draw_columns(batch)),
            BROKEN: self._broken,
            SAID: vars(self.account),
        }
        return BuiltBatch(batch.with_state(state), self._domains, self._drawn, self._known, self._rewarded)

    def _score(self, batch: Batch) -> Batch:
        return self._reward(_with_tasks(self._begin, batch, self._places))


def make_batch(
    begin: IterationInputs,
    runner: ProgramRunner,
    journal: Journal,
    reward: Callable[[Batch], Batch],
    tasks: int,
    group_size: int,
) -> BuiltBatch:
    """Select, roll out, reward, inject, admit, until enough groups are admitted; then mix, and score what was joined.

    Args:
        begin: what the iteration began with.
        runner: runs programs.
        journal: of the iteration; a selection is in it before its first rollout begins.
        reward: phase reward, by the states of the iteration's begin.
        tasks: how many groups are wanted.
        group_size: trajectories of a group, where the selector does not say.
    """
    gathered, again = BatchBuilder(begin, reward), GroupRetries.nothing()
    taken, first = np.zeros(0, np.int64), 0
    for number in range(begin.recipe.admit.rounds):
        selection, missing = again.selection, tasks - gathered.admitted - len(again)
        if missing > 0:
            wanted = SelectionRequest(missing, group_size, number, taken, begin.iteration)
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
    gathered.account.consume(runner.token_counts.values(), begin.iteration)
    gathered.account.balance(before=0)
    return gathered.made(group_size)


def cut_batch(
    begin: IterationInputs,
    flying: PartialRollouts,
    journal: Journal,
    reward: Callable[[Batch], Batch],
    tasks: int,
    group_size: int,
) -> BuiltBatch:
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
    cut = flying.batch_policy
    if begin.recipe.admit.becomes(0) != "replace":
        raise RecipeError(
            f"recipe {begin.recipe.name!r}: {begin.recipe.admit.title()} tries rejected tasks again, and with {cut} "
            "groups are taken one by one; leave batch_policy out, or replace them"
        )
    gathered, account = BatchBuilder(begin, reward), TokenLedger()
    gathered.account = account
    flight = InFlightGroups.carried(journal)
    before, taken, first = flight.undrawn, flight.selection.rows, 0
    for number in range(begin.recipe.admit.rounds):
        missing = cut.in_flight(tasks - gathered.admitted) - len(flight)
        if missing > 0:
            selection = _selected(begin, journal, SelectionRequest(missing, group_size, number, taken, begin.iteration))
            if (selection.purpose == SURVEY).any():
                raise RecipeError(
                    f"recipe {begin.recipe.name!r}: {begin.recipe.select.title()} surveys tasks, and with "
                    f"{cut} groups are taken one by one; leave batch_policy out"
                )
            statistics = [flying.statistics(task.task_id) for _, task in begin.pool.tasks(selection.rows)]
            flight = flight.joined(selection, (begin.iteration, first), statistics)
            first, taken = first + len(selection), np.concatenate([taken, selection.rows])
        if not len(flight):
            break
        gathered.chose(flight.selection.rows)
        runner = flying.runner()
        fresh, landed = runner.roll_out_in_flight(
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
            said = runner.token_counts.get(flight.name(place), TokenCounts())
            if place in landed.dropped:
                account.dropped += said.behind(flight.drawn[place]).tokens.total()
            else:
                account.consume([said.behind(flight.drawn[place])], begin.iteration)
        flight = flight.behind(landed, runner.token_counts)
        if landed.stay:
            fresh = fresh if cut.max_new_tokens is None else _with_success(fresh)
            gathered.admit(fresh, flight.selection, GroupRetries.nothing())
        if gathered.admitted >= tasks or cut.max_new_tokens is not None:
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


def _with_tasks(begin: IterationInputs, batch: Batch, places: Mapping[str, int]) -> Batch:
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


def _selected(begin: IterationInputs, journal: Journal, wanted: SelectionRequest) -> Selection:
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
