"""Assemble the batch of an iteration: inputs, columns, token counts, checks, and the record of its close."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from agentrl_core.collect.run_state import RunState
from agentrl_core.component.state import SELECTION, IterationRecord, State, unpack_state
from agentrl_core.data.batch import Batch
from agentrl_core.data.store import Store
from agentrl_core.data.table_codes import CODES
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.recipe import Recipe, place_of
from agentrl_core.replay.apply import ReplayPhase
from agentrl_core.replay.base import Replay
from agentrl_core.schedule.hook import Hook
from agentrl_core.select import Pool, Selection

FAILURES = "broken_down"
"""Key in the state of a batch: failures during collection, which its tables may not show."""
TOKENS = "said"
"""Key in the state of a batch: the accounting of generated tokens."""
COLUMNS = "columns"
"""Key in the state of an open batch: the columns of its draws."""
_START_STATES = "began"
"""Key in the state of a prefetched batch: the states of components at its start."""


def draw_columns(batch: Batch) -> dict[str, NDArray[Any]]:
    """Return the computed columns of draws by name, with those from replay."""
    table = batch.draw_columns
    return {} if table is None else {name: table.column(name) for name in table.column_names if name != "draw_id"}


def with_committed_columns(batch: Batch) -> Batch:
    """Restore the draw columns of a stored batch, which are in its state until the iteration closes."""
    state = batch.state
    columns = unpack_state(state.pop(COLUMNS, {}))
    return batch.with_state(state).with_columns("draw", **columns)


def attach_current_state(batch: Batch, recipe: Recipe, states: Mapping[str, State]) -> Batch:
    """Add the current states of components to a prefetched batch, which keeps the states at its iteration's start."""
    kept = {name: value for name, value in batch.state.items() if name in (SELECTION, COLUMNS, FAILURES, TOKENS)}
    began = {name: value for name, value in batch.state.items() if name not in kept}
    return batch.with_state({**recipe.with_states(batch, states).state, **kept, _START_STATES: began})


def score_again(recipe: Recipe, batch: Batch, rows: Batch, states: Mapping[str, State]) -> Batch:
    """Run phase reward on rows of a batch with the states at its iteration's start: those in the batch or `states`."""
    kept = batch.state
    if _START_STATES in kept:
        return recipe.score(rows.with_state(kept[_START_STATES])).with_state(kept)
    scored, counted = recipe.score(rows, states), {name: kept[name] for name in (FAILURES, TOKENS) if name in kept}
    return scored.with_state({**scored.state, **counted}) if counted else scored


def with_counts(batch: Batch, metrics: Mapping[str, object]) -> dict[str, object]:
    """Return the metrics of an iteration with tables `collect` and `tokens`.

    `Updates.metrics` has a number `tokens`, the trained ones: it becomes `trained` of the table.

    Raises:
        InvalidInputError: the metrics have a table of one of these names already.
    """
    others, trained, kept = {**metrics}, metrics.get("tokens"), batch.state
    tokens = dict(kept.get(TOKENS, {}))
    lag = tokens.pop("behind", None)
    if lag is not None:
        tokens["staleness"] = lag / max(tokens["consumed"], 1)
    if isinstance(trained, (Real, np.number)):
        tokens["trained"] = float(others.pop("tokens"))  # type: ignore[arg-type]
    for name in ("collect", "tokens"):
        if name in others:
            raise InvalidInputError(
                f"end_iteration: metrics[{name!r}] is {others[name]!r:.60}, but the collector writes the table of this "
                f"name; give it another name"
            )
    counts = {
        "draws": batch.num_draws,
        "unscored": int(np.isnan(batch.column("score", "draw")).sum()) if batch.has("score", "draw") else 0,
        "failed": int((batch.trajectories.column("status") == CODES["status"].index("failed")).sum()),
        "abandoned": 0,
        **kept.get(FAILURES, {}),  # with trajectories that failed without a token
    }
    return {"collect": counts, "tokens": tokens, **others}


def check_stepped(recipe: Recipe, metrics: Mapping[str, object]) -> None:
    """Refuse metrics of updates that bypassed the recipe's hooks on optimizer steps.

    Raises:
        RecipeError: `Update.step` was never called.
    """
    if metrics.get("stepped") or not metrics.get("updates"):
        return
    for link in recipe.chain("hooks"):
        if isinstance(link, Hook) and link.acts_in_step:
            raise RecipeError(
                f"recipe {recipe.name!r}: {link.title()} decides about optimizer steps, but Update.step was never "
                "called; use update.step(optimizer) instead of optimizer.step() and optimizer.zero_grad(), and pass "
                "Updates.metrics to Collector.end_iteration"
            )


def check_losses(recipe: Recipe, batch: Batch) -> None:
    """Refuse a batch with draws but without their column `loss`, if the recipe needs it.

    Raises:
        RecipeError: it has no draw column `loss`.
    """
    if recipe.needs_losses and batch.num_draws and not batch.has("loss", "draw"):
        raise RecipeError(
            f"recipe {recipe.name!r} needs the loss of each draw, but the batch has no draw column 'loss'; pass "
            "updates.with_losses() to end_iteration"
        )


def iteration_record(
    batch: Batch, metrics: Mapping[str, object], iteration: int, pool: Pool, score: Callable[[Batch], Batch]
) -> IterationRecord:
    """Return the record of a closing iteration. It depends on stored data only, so it is the same after a kill.

    Args:
        batch: the trained batch, with its computed columns.
        metrics: metrics of the iteration.
        iteration: its number.
        pool: the tasks, with statistics at the end of the iteration.
        score: phase reward, with the states at the start of the iteration.
    """
    table = batch.state.get(SELECTION)
    selection = None if table is None else Selection.from_dict(table)
    finished = _finished(batch, iteration, score)
    return IterationRecord.of(
        batch,
        {**_solved(finished, pool, selection), **metrics},
        iteration=iteration,
        selection=selection,
        pool=pool,
        finished=finished,
    )


def _solved(finished: Batch, pool: Pool, selection: Selection | None) -> dict[str, float]:
    """Return the share of trajectories that solved their task, if known: `success`, and `success@<domain>`."""
    if selection is None or not finished.num_draws:
        return {}
    names, tasks = finished.texts("task_id", "draw"), finished.keys("task_id", "draw")
    _, first = np.unique(tasks, return_index=True)
    domains = {task.task_id: task.domain for _, task in pool.tasks(selection.rows)}
    of_tasks = np.array([domains.get(names[row], "") for row in first])
    success = np.asarray(finished.column("success", "draw"), np.float64)
    known = np.isfinite(success)
    found = {"success": float(success[known].mean())} if known.any() else {}
    for domain in dict.fromkeys(of_tasks.tolist()):
        own = known & (of_tasks == domain)[tasks]
        found |= {f"success@{domain}": float(success[own].mean())} if domain and own.any() else {}
    return found


def _finished(batch: Batch, iteration: int, score: Callable[[Batch], Batch]) -> Batch:
    """Return a batch with a draw for each finished trajectory of the iteration, also for those that were not drawn."""
    table = batch.trajectories
    status = np.asarray(table.column("status"))
    # A trajectory cut by a window continues: it is truncated, and its success is unknown.
    cut = np.isnan(np.asarray(table.column("success"), np.float64))
    ended = (status == CODES["status"].index("finished")) | ((status == CODES["status"].index("truncated")) & ~cut)
    own = (np.asarray(table.column("iteration")) == iteration) & ended
    own &= np.asarray(table.column("role")) != CODES["role"].index("helper")
    ids = np.asarray(table.column("trajectory_id"))[own]
    if set(ids.tolist()) == set(batch.column("trajectory_id", "draw").tolist()):
        return batch
    none = batch.select_draws(np.zeros(0, np.int64))
    return score(none.with_draws(ids, source="fresh", iteration=iteration))


@dataclass
class TokenCounts:
    """Token counts of a group: generated tokens of each policy version, tokens of contexts, and cached ones.

    Attributes:
        tokens: by the version of the weights that generated them.
        context: tokens of all requested contexts.
        cached: context tokens in the engine's cache, as far as it reports them.
    """

    tokens: Counter[int] = field(default_factory=Counter)
    context: int = 0
    cached: int = 0

    def undrawn(self, drawn: Mapping[str, int]) -> TokenCounts:
        """Return the counts without the tokens that earlier batches have, given by policy version."""
        rest = Counter({version: count - drawn.get(str(version), 0) for version, count in self.tokens.items()})
        return TokenCounts(rest, self.context, self.cached)


@dataclass
class TokenLedger:
    """Token balance of an iteration: generated + in flight before = consumed + dropped + in flight after.

    Attributes:
        generated: tokens generated in this iteration.
        consumed: tokens of groups in the batch, whenever generated.
        stale: consumed tokens of weights before the update with the iteration's number.
        behind: sum of the version lags of consumed tokens.
        dropped: tokens of stopped groups without draws.
        in_flight: tokens of continuing groups that are not in a batch yet.
        context: tokens of all requested contexts of the batch's groups.
        cached: context tokens in the engine's cache, as far as it reports them.
    """

    generated: int = 0
    consumed: int = 0
    stale: int = 0
    behind: int = 0
    dropped: int = 0
    in_flight: int = 0
    context: int = 0
    cached: int = 0

    def consume(self, counts: Iterable[TokenCounts], iteration: int) -> None:
        """Count the tokens of groups that join the batch."""
        for each in counts:
            self.context += each.context
            self.cached += each.cached
            for version, count in each.tokens.items():
                self.consumed += count
                self.behind += max(iteration - version, 0) * count
                self.stale += count if version < iteration else 0

    def balance(self, before: int) -> None:
        """Compute `generated` from the other counts."""
        self.generated = self.consumed + self.dropped + self.in_flight - before


@dataclass(frozen=True, eq=False)
class IterationInputs:
    """Inputs of an iteration, constant until it closes.

    Attributes:
        iteration: its number.
        recipe: the recipe of the run.
        head: state of the run.
        pool: the tasks, with their statistics.
        seed: seed of the run.
        store: store of trajectories for replay; None: no store.
    """

    iteration: int
    recipe: Recipe
    head: RunState
    pool: Pool
    seed: int
    store: Store | None

    @cached_property
    def now(self) -> Recipe:
        """The recipe of the iteration, with each schedule, controller and choice replaced by its value."""
        return self.recipe.at(self.iteration, self.head.components)

    def score(self, batch: Batch) -> Batch:
        """Run phase reward with the states at the start of the iteration."""
        return self.recipe.score(batch, self.head.components)

    def state(self, phase: str, place: int, component: Any) -> State:
        """Return the state of a component."""
        state = self.head.components.get(place_of(phase, place, component))
        return component.initial_state() if state is None else state

    def replay(self) -> ReplayPhase:
        """Return the replay components with their states."""
        chain = cast("tuple[Replay, ...]", self.now.chain("replay"))
        states = [(replay, self.state("replay", place, replay)) for place, replay in enumerate(chain)]
        return ReplayPhase(states, self.store, self.seed, self.iteration)
