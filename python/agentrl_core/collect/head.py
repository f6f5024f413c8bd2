"""Where a run stands, and whether it is the same run as before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from agentrl_core import _core
from agentrl_core.data.store import Store


@dataclass(frozen=True)
class Head:
    """Where the loop stands after the last write of its store (or in memory, where there is none)."""

    iteration: int
    components: dict[str, Any]
    """What the components remember."""
    run: dict[str, Any]
    """Recipe, seed and size of groups that the last closed iteration was made with."""
    versions: dict[str, int]
    """The version of each engine's weights when it was closed."""
    checkpoint: str | None
    """The user's name for those weights."""
    tasks: _core.Batch
    """Statistics of the tasks, in a batch without rows."""
    sequence: int
    """The store's last write that this was read behind."""

    @classmethod
    def of(cls, store: Store, *, tasks: _core.Batch | None = None) -> Self:
        """What a store says, but for the task statistics where they are known."""
        tasks = store._core.tasks() if tasks is None else tasks
        state = store.state
        components, run, versions = (state.get(name, {}) for name in ("components", "run", "policy_versions"))
        return cls(store.iteration, components, run, versions, state.get("checkpoint"), tasks, store.sequence)


_SELECTED = b"selected"


def keep_selection(store: Store, iteration: int, selection: Mapping[str, Any]) -> None:
    """Write down what an iteration selected, before its batch is committed and its own journal is over with that."""
    journal = store.journal(iteration + 1)
    journal.append(_SELECTED, json.dumps([iteration, selection]).encode())
    journal.sync()


def kept_selection(store: Store, iteration: int) -> dict[str, Any] | None:
    """What was selected for the batch of an open iteration, which the store has."""
    found = [json.loads(payload) for name, payload in store.journal(iteration + 1).records() if name == _SELECTED]
    return next((selection for number, selection in reversed(found) if number == iteration), None)


def own_records(unasked: Sequence[str]) -> list[str]:
    """The records of programs among those that nobody asked for."""
    return [name for name in unasked if name != _SELECTED.decode()]


def changes(before: Mapping[Any, Any], now: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The entries of two tables that differ: place, old and new value."""
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        place = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}".removeprefix(".")
        if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            old, new = dict(enumerate(old)), dict(enumerate(new))
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from changes(old, new, place)
        elif old != new:
            yield place, old, new
