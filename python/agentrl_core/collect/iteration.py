"""The batch of one iteration: what stands in it, as it is given out, and what there is of it when it is closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.state import SELECTION, IterationRecord, State, unpack_state
from agentrl_core.data.batch import Batch
from agentrl_core.data.codes import CODES
from agentrl_core.data.store import Store
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe, place_of
from agentrl_core.replay.apply import ReplayPhase
from agentrl_core.replay.base import Replay
from agentrl_core.schedule.hook import Hook
from agentrl_core.select import Pool, Selection

BROKEN = "broken_down"
"""Where the state of a batch has what broke down while it was made, of which its tables may have no row."""
SAID = "said"
"""Where the state of a batch has what became of the tokens that engines said."""
COLUMNS = "columns"
"""Where the state of a batch that is not closed has the columns of its draws."""
_BEGAN = "began"
"""Where the state of a batch that was begun ahead has what the components remembered then."""


@dataclass(frozen=True, eq=False)
class BuiltBatch:
    """The batch of an iteration, and how it came about.

    Attributes:
        batch: with column `score`, and what was selected in its state; rejected groups and surveys are in it undrawn.
        domains: of its tasks, by id.
        drawn: how many draws admission saw.
        scored: how many of them had a score.
        rewarded: whether the environment paid a number in any.
    """

    batch: Batch
    domains: Mapping[str, str]
    drawn: int
    scored: int
    rewarded: bool


def draw_columns(batch: Batch) -> dict[str, NDArray[Any]]:
    """What is computed of the draws so far, and what replay says of them."""
    table = batch.draw_columns
    return {} if table is None else {name: table.column(name) for name in table.column_names if name != "draw_id"}


def with_committed_columns(batch: Batch) -> Batch:
    """A batch as it was made: with the columns of its draws, which the store has in its state until it is closed."""
    state = batch.state
    columns = unpack_state(state.pop(COLUMNS, {}))
    return batch.with_state(state).with_columns("draw", **columns)


def attach_current_state(batch: Batch, recipe: Recipe, states: Mapping[str, State]) -> Batch:
    """A batch that was begun ahead, as it is trained: with what the components remember now, and what they did then."""
    kept = {name: value for name, value in batch.state.items() if name in (SELECTION, COLUMNS, BROKEN, SAID)}
    began = {name: value for name, value in batch.state.items() if name not in kept}
    return batch.with_state({**recipe.with_states(batch, states).state, **kept, _BEGAN: began})


def scores(recipe: Recipe, batch: Batch, states: Mapping[str, State]) -> Callable[[Batch], Batch]:
    """Phase reward for draws of a batch, by the states that its iteration began with: `states`, or those in it."""
    began = batch.state.get(_BEGAN)
    if began is None:
        counted = {name: value for name, value in batch.state.items() if name in (BROKEN, SAID)}

        def score(rows: Batch) -> Batch:
            scored = recipe.score(recipe.with_states(rows, states))
            return scored.with_state({**scored.state, **counted}) if counted else scored

        return score
    return lambda rows: recipe.score(rows.with_state(began)).with_state(batch.state)


def counts(batch: Batch) -> dict[str, int]:
    """How many draws a batch has, and how many of them no update can use."""
    unscored = int(np.isnan(batch.column("score", "draw")).sum()) if batch.has("score", "draw") else 0
    return {"draws": batch.num_draws, "unscored": unscored, **failure_counts(batch)}


def token_metrics(batch: Batch) -> dict[str, float]:
    """What became of the tokens that engines said, and their mean age; nothing of a batch that no collector made."""
    said = dict(batch.state.get(SAID, {}))
    behind = said.pop("behind", None)
    return said if behind is None else {**said, "staleness": behind / max(said["consumed"], 1)}


def failure_counts(batch: Batch) -> dict[str, int]:
    """How many trajectories failed, also before their first token, and how many threads were abandoned."""
    rows = int((batch.trajectories.column("status") == CODES["status"].index("failed")).sum())
    return {"failed": rows, "abandoned": 0, **batch.state.get(BROKEN, {})}


def check_stepped(recipe: Recipe, metrics: Mapping[str, object]) -> None:
    """Refuse metrics of updates whose steps the recipe decides about, and was not asked.

    Raises:
        RecipeError: as said.
    """
    asked = [link.title() for link in recipe.chain("hooks") if isinstance(link, Hook) and link.acts_in_step]
    if asked and metrics.get("updates") and not metrics.get("stepped"):
        raise RecipeError(
            f"recipe {recipe.name!r}: {asked[0]} decides about optimizer steps, and Update.step was never called; "
            "write update.step(optimizer) in place of optimizer.step() and optimizer.zero_grad(), and give "
            "Updates.metrics to Collector.end_iteration"
        )


def iteration_record(
    batch: Batch, metrics: Mapping[str, object], iteration: int, pool: Pool, score: Callable[[Batch], Batch]
) -> IterationRecord:
    """What there is of an iteration that ends: a function of what the store has of it, the same after any kill.

    Args:
        batch: that was trained, with its computed columns.
        metrics: what was measured.
        iteration: its number.
        pool: the tasks, with what is known of them at the iteration's end.
        score: phase reward, by the states of the iteration's begin.
    """
    said = batch.state.get(SELECTION)
    selection = None if said is None else Selection.from_dict(said)
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
    """The share of the iteration's trajectories that solved their task: `success`, and `success@<domain>`."""
    if selection is None or not finished.num_draws:
        return {}
    names, tasks = finished.texts("task_id", "draw"), finished.keys("task_id", "draw")
    _, first = np.unique(tasks, return_index=True)
    domains = {task.task_id: task.domain for _, task in pool.tasks(selection.rows)}
    of_tasks = np.array([domains.get(names[row], "") for row in first])
    solved = np.asarray(finished.column("success", "draw") == 1)
    found = {"success": float(solved.mean())}
    for domain in dict.fromkeys(of_tasks.tolist()):
        found |= {f"success@{domain}": float(solved[(of_tasks == domain)[tasks]].mean())} if domain else {}
    return found


def _finished(batch: Batch, iteration: int, score: Callable[[Batch], Batch]) -> Batch:
    """Every trajectory that ended in the iteration as a draw of its own group, also those that no draw names."""
    table = batch.trajectories
    columns = {name: np.asarray(table.column(name)) for name in ("trajectory_id", "iteration", "status", "role")}
    ended = np.isin(columns["status"], [CODES["status"].index(name) for name in ("finished", "truncated")])
    # What a window has cut goes on: it is truncated, and nobody knows whether it will succeed.
    cut = columns["status"] == CODES["status"].index("truncated")
    ended &= ~(cut & np.isnan(np.asarray(table.column("success"), np.float64)))
    own = (columns["iteration"] == iteration) & ended & (columns["role"] != CODES["role"].index("helper"))
    ids = columns["trajectory_id"][own]
    if set(ids.tolist()) == set(batch.column("trajectory_id", "draw").tolist()):
        return batch
    none = batch.select_draws(np.zeros(0, np.int64))
    return score(none.with_draws(ids, source="fresh", iteration=iteration))


@dataclass(frozen=True)
class IterationInputs:
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

    def replay(self) -> ReplayPhase:
        """The replay components with their states."""
        chain = cast("tuple[Replay, ...]", self.recipe.chain("replay"))
        states = [(replay, self.state("replay", place, replay)) for place, replay in enumerate(chain)]
        return ReplayPhase(states, self.store, self.seed, self.iteration)
