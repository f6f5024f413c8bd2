"""Build the batch of an iteration: select, roll out, reward, inject, admit, until it is full."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.collect.argument_checks import check_chosen
from agentrl_core.collect.group_retry import GroupRetries, group_ids, matching
from agentrl_core.collect.iteration import (
    COLUMNS,
    FAILURES,
    TOKENS,
    IterationInputs,
    TokenLedger,
    draw_columns,
)
from agentrl_core.collect.recorded_episode import EnvironmentHandle
from agentrl_core.collect.rollout_driver import RolloutDriver
from agentrl_core.collect.rollout_log import IterationLog, digest, read_value, write_value
from agentrl_core.collect.rollout_workers import WorkerDriver
from agentrl_core.collect.warn_once import WarnOnce
from agentrl_core.component.state import SELECTION, pack_state
from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import AgentRLWarning, InvalidInputError, RecipeError
from agentrl_core.rollout.progress import Progress
from agentrl_core.select import Selection, SelectionRequest
from agentrl_core.select.selector import SURVEY, TRAIN
from agentrl_core.select.task_outcomes import entries_of
from agentrl_core.update.old_logprobs import with_old_logprobs


class BatchBuilder:
    """Accumulate the batch of an iteration, round by round: rewarded, injected, admitted.

    Args:
        inputs: inputs of the iteration.

    Attributes:
        batch: the batch after `build`, with column `score` and the selection in its state; rejected groups and surveys
            have no draws.
        domains: domains of its tasks, by id.
        admitted: number of admitted groups.
        selections: the selections of the rounds.
        ledger: token balance of the iteration.
    """

    batch: Batch

    def __init__(self, inputs: IterationInputs) -> None:
        self._inputs = inputs
        self._replay = inputs.replay() if inputs.recipe.replay is not None else None
        self._parts: list[Batch] = []
        self._places: dict[str, int] = {}
        self.domains: dict[str, str] = {}
        self._retries = inputs.now.admit.becomes(0) != "replace"
        self._drawn = self._scored = self._seen = self._judged = 0
        self._rewarded = False
        self._failures = {"failed": 0, "abandoned": 0}
        self.admitted = 0
        self.selections: list[Selection] = []
        self.ledger = TokenLedger()

    def add_selection(self, rows: NDArray[np.int64]) -> None:
        """Record the pool rows and domains of selected tasks."""
        for row, (_, task) in zip(rows.tolist(), self._inputs.pool.tasks(rows), strict=True):
            self._places[task.task_id], self.domains[task.task_id] = row, task.domain

    def survey(self, fresh: Batch) -> None:
        """Add the groups of a survey to the batch, without draws."""
        self._parts.append(fresh.select_draws(np.zeros(0, np.int64)))

    def admit(self, fresh: Batch, selection: Selection, again: GroupRetries | None = None) -> GroupRetries | None:
        """Admit groups by the recipe, and return the rejected ones to retry; None if the recipe does not retry.

        Args:
            fresh: the new rollouts.
            selection: their selection.
            again: the retries in its first rows.
        """
        admission, held = self._inputs.now.admit, 0
        if self._retries:
            first = np.unique(fresh.keys("group_id", "draw"), return_index=True)[1]
            tasks = fresh.texts("task_id", "draw")
            entries = entries_of([tasks[row] for row in first], selection, self._inputs.pool)
        if again is not None and again.extends and fresh.num_draws:
            before = self._parts.pop(self._judged)
            held = before.num_groups
            fresh, entries = again.joined(before, fresh, entries)
        batch = self._score(fresh)
        if self._replay is not None:
            batch = self._replay.inject(batch, self._score, self._seen, held)
        groups, scores = batch.keys("group_id", "draw"), batch.column("score", "draw")
        self._drawn, self._scored = self._drawn + len(scores), self._scored + int(np.isfinite(scores).sum())
        self._rewarded = self._rewarded or bool(np.isfinite(batch.column("reward", "draw")).any())
        # Groups are sorted by key, independent of which ended first.
        judged = np.where(np.isfinite(scores), batch.column(admission.judged, "draw"), np.nan)
        accepted = admission(judged, groups) | (np.arange(batch.num_groups) < held)
        self._seen += len(accepted) - held
        self._judged = len(self._parts)
        self._parts.append(batch if accepted.all() else batch.select_draws(np.flatnonzero(accepted[groups])))
        self.admitted += int(accepted.sum()) - held
        if not self._retries:
            return None
        rejected = ~np.isin(matching(fresh, batch), group_ids(batch)[accepted])
        return GroupRetries.of(fresh, rejected, entries, selection, again, admission)

    def add_failures(self, progress: Progress) -> None:
        """Add the failed and abandoned episodes of a round to the counts."""
        self._failures["failed"] += progress.failed
        self._failures["abandoned"] += progress.abandoned

    def build(self, group_size: int) -> BatchBuilder:
        """Build `batch` from the admitted groups and the draws that replay mixes in, and return this builder."""
        inputs, parts = self._inputs, self._parts
        batch = parts[0] if len(parts) == 1 else Batch.concat(parts)
        # A restart scores the batch as a whole, so batches of several rounds or cuts are scored again for equal scores.
        if len(parts) > 1 or batch.num_draws != self._drawn:
            batch = self._score(batch)
        if self._replay is not None:
            batch = self._replay.mix(batch, self._score)
        batch = with_old_logprobs(batch, inputs.recipe.old_logprob)
        chosen = self.selections or [Selection.of(np.zeros(0, np.int64), group_size)]
        state = {
            **batch.state,
            SELECTION: Selection.concat(chosen).to_dict(),
            COLUMNS: pack_state(draw_columns(batch)),
            FAILURES: self._failures,
            TOKENS: vars(self.ledger),
        }
        self.batch = batch.with_state(state)
        self._parts = []  # their memory
        return self

    def warn_without_draws(self, notices: WarnOnce, worlds: Mapping[str, EnvironmentHandle]) -> None:
        """Warn of an iteration without draws or scores; raise an error if the environment paid only NaN.

        A program without finished trajectories and without failures is accepted.

        Args:
            notices: warns once in a run.
            worlds: the environments.

        Raises:
            InvalidInputError: the environment paid NaN in each draw.
        """
        recipe, iteration, failed = self._inputs.recipe, self._inputs.iteration, self._failures["failed"]
        if not self.batch.num_draws and (self._drawn or failed):
            why = f"{recipe.admit.title()} admitted none of the {self._drawn} draws that were rolled out"
            why += "; give more tasks, or loosen its options"
            why = (
                why
                if self._drawn
                else f"{failed} trajectories failed and no draw is left; correct the cause in the warnings"
            )
            warnings.warn(
                f"iteration {iteration} has no draws, so it makes no update: {why}", AgentRLWarning, stacklevel=2
            )
        if not self._drawn or self._scored:
            return
        unscored = f"none of the {self._drawn} draws of iteration {iteration} has a score"
        if not self._rewarded:
            titles = ", ".join(world.title for world in worlds.values())
            raise InvalidInputError(
                f"{unscored}, because environment {titles} paid NaN for each of them; return numbers in "
                "StepResult.reward"
            )
        notices.once(
            "scores",
            f"{unscored}: phase reward of recipe {recipe.name!r} turns each reward into NaN; check its components",
        )

    def _score(self, batch: Batch) -> Batch:
        return self._inputs.score(_with_tasks(self._inputs, batch, self._places))


def make_batch(
    inputs: IterationInputs, driver: RolloutDriver | WorkerDriver, log: IterationLog, tasks: int, group_size: int
) -> BatchBuilder:
    """Select, roll out, reward, inject and admit until the batch is full or rounds run out; then mix in replay.

    Args:
        inputs: inputs of the iteration.
        driver: runs programs.
        log: rollout log of the iteration; a selection is written to it before its first rollout.
        tasks: number of requested groups.
        group_size: trajectories of a group, unless the selector chooses.
    """
    builder = BatchBuilder(inputs)
    again: GroupRetries | None = None
    taken, first = np.zeros(0, np.int64), 0
    for number in range(inputs.now.admit.rounds):
        parts = [again.selection] if again else []
        missing = tasks - builder.admitted - (len(again) if again else 0)
        if missing > 0:
            wanted = SelectionRequest(missing, group_size, number, taken, inputs.iteration)
            parts.append(select(inputs, log, wanted))
            taken = np.concatenate([taken, parts[-1].rows])
        selection = Selection.concat(parts)
        if not len(selection):
            break
        builder.selections.append(selection)
        builder.add_selection(selection.rows)
        for purpose in (TRAIN, SURVEY):
            rows = np.flatnonzero(selection.purpose == purpose)
            if not len(rows):
                continue
            fresh = driver.roll_out(
                inputs.pool.tasks(selection.rows[rows]),
                selection.counts[rows].tolist(),
                first=first,
                variants=selection.variants[rows].tolist(),
            )
            first += len(rows)
            if purpose == SURVEY:
                builder.survey(fresh)
            else:
                again = builder.admit(fresh, selection.take(rows), again)
        if builder.admitted >= tasks:
            break
    builder.add_failures(driver.progress)
    builder.ledger.consume(driver.token_counts.values(), inputs.iteration)
    builder.ledger.balance(before=0)
    return builder.build(group_size)


def _with_tasks(inputs: IterationInputs, batch: Batch, places: Mapping[str, int]) -> Batch:
    """Add the selector's columns of the draws' tasks as `task_<name>`."""
    select = inputs.now.select
    rows = np.array([places.get(task, -1) for task in batch.texts("task_id", "draw")], np.int64)
    known = np.flatnonzero(rows >= 0)
    columns = select.columns(inputs.pool, inputs.state("select", 0, select), rows[known]) if len(known) else {}
    made: dict[str, NDArray[np.float32]] = {}
    for name, values in columns.items():
        made[f"task_{name}"] = np.full(len(rows), np.nan, np.float32)
        made[f"task_{name}"][known] = values
    return batch.with_columns("draw", **made) if made else batch


def select(inputs: IterationInputs, log: IterationLog, wanted: SelectionRequest) -> Selection:
    """Return the selection of a round, from the rollout log or from the selector; a new one is recorded first."""
    selector = inputs.now.select
    settings = (selector.to_dict(), wanted.groups, wanted.group_size, len(inputs.pool), inputs.seed)
    name, question = f"selection/{wanted.round}", digest(json.dumps(settings))
    recorded = log.find(name, question, read_value)
    if recorded is None:
        key = _core.rng.structural_seed(inputs.seed, inputs.iteration)
        selection = selector.choose(inputs.pool, inputs.state("select", 0, selector), wanted, key)
        if not isinstance(selection, Selection):
            raise RecipeError(f"{selector.title()}: choose returned {selection!r:.60}; return a select.Selection")
        selection.check(len(inputs.pool), selector.title())
        check_chosen(inputs.pool.tasks(selection.rows))
        recorded = selection.take(np.argsort(selection.purpose, kind="stable")).to_dict()  # surveys after the others
        log.keep(name, question, recorded, write_value)
    return Selection.from_dict(recorded)
