"""Where a run stands, and whether it is the same run as before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from agentrl_core import _core
from agentrl_core.component.state import State, joined
from agentrl_core.data.store import Store


@dataclass(frozen=True)
class Head:
    """Where the loop stands after the last write of its store (or in memory, where there is none)."""

    iteration: int
    components: dict[str, State]
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
        components = joined(components, store.arrays)
        return cls(store.iteration, components, run, versions, state.get("checkpoint"), tasks, store.sequence)


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
