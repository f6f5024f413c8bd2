"""State of a run between iterations, and checks that a resumed run is the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from agentrl_core import _core
from agentrl_core._util.files import new_file
from agentrl_core.collect.warn_once import WarnOnce
from agentrl_core.component.component import PHASES, only_own_components
from agentrl_core.component.state import State, Stateful, compatible_state, join_arrays
from agentrl_core.data.store import Store
from agentrl_core.engine.base import Engine
from agentrl_core.exceptions import InvalidInputError, RecipeError, StoreError
from agentrl_core.recipe import Recipe


@dataclass(frozen=True)
class RunState:
    """State of a run after the last write to its store (or in memory, without a store)."""

    iteration: int
    components: dict[str, State]
    """States of the components."""
    run: dict[str, Any]
    """Recipe, seed, group size and digest of the tasks of the last closed iteration."""
    versions: dict[str, int]
    """Version of each engine's weights at its close."""
    checkpoint: str | None
    """The user's checkpoint name for those weights."""
    tasks: _core.Batch
    """Statistics of the tasks, in a batch without rows."""
    sequence: int
    """Number of the store's last write at the time of reading."""

    @classmethod
    def of(cls, store: Store, *, tasks: _core.Batch | None = None) -> Self:
        """Read the state from a store; `tasks` replaces its task statistics if given."""
        tasks = store._core.tasks() if tasks is None else tasks
        state = store.state
        return cls(
            iteration=store.iteration,
            components=join_arrays(state.get("components", {}), store.arrays),
            run=state.get("run", {}),
            versions=state.get("policy_versions", {}),
            checkpoint=state.get("checkpoint"),
            tasks=tasks,
            sequence=store.sequence,
        )

    def statistics(self, task_id: str) -> Mapping[str, Any]:
        """Return the statistics of a task; empty for a new one."""
        rows, columns = self._statistics
        row = rows.get(task_id)
        return {} if row is None else {name: values[row] for name, values in columns.items()}

    @cached_property
    def _statistics(self) -> tuple[dict[str, int], dict[str, Any]]:
        """Return the row of each task, and the columns."""
        table = self.tasks.tasks
        columns = {name: table.column(name) for name in table.column_names if name != "task_id"}
        # Rows are appended when they change: the last one of a task counts.
        return dict(zip(table.column("task_id"), range(table.num_rows), strict=True)), columns

    def carried(self, recipe: Recipe, run: Mapping[str, Any], notices: WarnOnce) -> Self:
        """Return the state for continuing a run with another recipe; component states that do not match are reset.

        Args:
            recipe: the new recipe.
            run: the record of the run, with the recipe as a table.
            notices: warns of reset states.
        """
        if self.run.get("recipe", run["recipe"]) == run["recipe"]:
            return self
        before, after = classes(self.run["recipe"]), classes(run["recipe"])
        states = dict(self.components)
        for place, controller in recipe.controllers.items():
            if before.get(place) != after[place]:
                states.pop(place, None)
            elif place in states:
                states[place] = compatible_state(controller.initial_state(), states[place])
        now = recipe.at(self.iteration, states)
        for place, link in (each for phase in PHASES for each in now.components(phase)):
            if isinstance(link, Stateful) and place in states:
                states[place] = compatible_state(link.initial_state(), states[place])
        reset = [place for place, state in self.components.items() if not _within(state, states.get(place, {}))]
        if reset:
            notices.once(
                "carried",
                f"the recipe has changed: the stored state at {', '.join(reset)} does not fit the new recipe and is "
                "reset, at least in part; continue with the old recipe to keep the state",
            )
        return replace(self, components=states)

    def check_run(self, run: Mapping[str, Any], path: str) -> None:
        """Raise an error if a run differs from the stored one.

        Raises:
            InvalidInputError: recipe, seed, group size or data set differs; the message names the first difference.
        """
        known = self.run.keys() & run.keys()
        kept, now = ({name: each[name] for name in known} for each in (self.run, run))
        if "recipe" in known and kept["recipe"] != now["recipe"]:
            kept["recipe"] = _with_new_options(kept["recipe"])
        for name, old, new in changes(kept, now):
            raise InvalidInputError(
                f"the run in {path} was made with {name}={old!r}, not {new!r}; use the old value, choose another "
                f"directory, or pass Collector(..., allow_changes=True)"
            )

    def check_weights(self, engines: Mapping[str, Engine]) -> None:
        """Refuse an engine without the weights of the resumed run.

        Raises:
            InvalidInputError: its version is older than that in the store.
        """
        for name, engine in engines.items():
            version = self.versions.get(name, engine.policy_version)
            # Newer weights are the user's decision; older ones belong to another iteration.
            if engine.policy_version < version:
                checkpoint = f", those of checkpoint {self.checkpoint!r}" if self.checkpoint else ""
                raise InvalidInputError(
                    f"engine {name!r} has weights of version {engine.policy_version}, but the run continues with "
                    f"version {version}{checkpoint}; load them, and call engine.update_weights(model, "
                    f"version={version})"
                )


def _with_new_options(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table of a recipe with the defaults of options that its components have gained since it was stored."""
    try:
        with only_own_components():
            return Recipe.from_dict(recipe).to_dict()
    except RecipeError:  # it names components of a user, or of another version
        return recipe


def changes(before: Mapping[Any, Any], now: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the differing entries of two tables: place, old and new value."""
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        place = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}".removeprefix(".")
        if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            old, new = dict(enumerate(old)), dict(enumerate(new))
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from changes(old, new, place)
        elif old != new:
            yield place, old, new


def classes(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of all classes in the table of a recipe, by the places of their components, without imports.

    Example:
        >>> from agentrl_core.collect.run_state import classes
        >>> classes({"loss": {"component": "Policy", "clip": {"component": "Clip"}}})
        {'loss[0].Policy': 'Policy', 'loss[0].Policy.clip': 'Clip'}
    """
    links = (
        (phase, table if isinstance(table, list) else [table]) for phase, table in recipe.items() if phase in PHASES
    )
    return {
        place: name
        for phase, chain in links
        for number, link in enumerate(chain)
        for place, name in _named(f"{phase}[{number}]", link)
    }


def _named(place: str, value: Any, *, inside: bool = False) -> Iterator[tuple[str, str]]:
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from _named(f"{place}[{number}]", each, inside=True)
    elif isinstance(value, Mapping):
        name = value.get("component")
        if isinstance(name, str):
            # As `recipe.place_of` writes it.
            place = place if inside else f"{place}.{re.split(r'[:.]', name)[-1]}"
            yield place, name
        for option, each in value.items():
            yield from _named(f"{place}.{option}", each, inside=True)


def _within(state: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether another state has all entries of a state, as identical objects."""
    return all(
        name in other and (_within(value, other[name]) if isinstance(value, Mapping) else value is other[name])
        for name, value in state.items()
    )


def save_tokenizer(store: Store | None, engines: Iterable[Engine]) -> None:
    """Write `tokenizer/tokenizer.json` of the first engine with a fast tokenizer into the run, once.

    Raises:
        StoreError: the file cannot be written.
    """
    file = None if store is None else Path(store.path, "tokenizer", "tokenizer.json")
    if file is None or file.exists() or (file.parents[1] / "start" / "tokenizer.json").exists():
        return
    for engine in engines:
        # A custom engine may have no tokenizer.
        core = getattr(getattr(engine.chat, "tokenizer", None), "backend_tokenizer", None)
        if core is None:
            continue
        try:
            file.parent.mkdir(exist_ok=True)
            with new_file(file) as opened:
                opened.write(core.to_str().encode())
        except OSError as error:
            raise StoreError(f"{file} cannot be written: {error}; check the folder and its free space") from None
        return
