"""State that components keep between iterations, updated when each iteration closes.

Two forms are stored. A store has the state after the last closed iteration: plain values as JSON, and arrays by path,
of which it writes only changed rows (`split_arrays`, `join_arrays`). A batch has the state that its columns were
computed with, in one JSON text with each array as text in its place (`pack_state`, `unpack_state`).
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.batch_component import BatchComponent
from agentrl_core.component.component import Component
from agentrl_core.component.draw_subset import with_voting_draws
from agentrl_core.data.store import flatten_metrics
from agentrl_core.exceptions import InvalidInputError, RecipeError

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

State = dict[str, Any]
"""State of a component: a table of plain JSON values, tables, and NumPy arrays (bool, int, float; 1-D or 2-D)."""

SELECTION = "selection"
"""Key of the selection in the state of a batch, beside the places of components."""

_ARRAY = "array"


@dataclass(frozen=True, eq=False)
class IterationRecord:
    """A closed iteration: the input of `Stateful.next`.

    Args:
        iteration: its number.
        batch: every draw of the batch, with all its columns: credit, and columns that the updates added.
        metrics: numbers by name, those of tables joined by a dot: `loss`, `critic.loss`, `success@math`.
        selection: the `select.Selection`; None if nothing was selected.
        pool: the `select.Pool` with the statistics of tasks at the end of the iteration.
        finished: every group that ended in the iteration, including rejected groups and surveys, which have no draws;
            None: those of the batch.
        steps: metrics of each optimizer step, for controllers that move after every step.
    """

    iteration: int
    batch: Batch
    metrics: Mapping[str, float] = field(default_factory=dict)
    selection: Any = None
    pool: Any = None
    finished: Batch = None  # type: ignore[assignment]  # what `batch` holds, unless somebody says more
    steps: Sequence[Mapping[str, float]] = ()

    def __post_init__(self) -> None:
        if self.finished is None:
            object.__setattr__(self, "finished", self.batch)

    @classmethod
    def of(cls, batch: Batch, metrics: Mapping[str, object] | None = None, **others: Any) -> Self:
        """Create the record from a batch and its metrics, which may be nested tables.

        Example:
            >>> import agentrl_core as arl
            >>> from agentrl_core.component import IterationRecord
            >>> metrics = {"loss": 0.5, "critic": {"loss": 0.25}, "note": "text"}
            >>> IterationRecord.of(arl.Forest().freeze(), metrics).metrics
            {'loss': 0.5, 'critic.loss': 0.25}
        """
        iterations = batch.column("iteration", "draw")
        values = dict(metrics or {})
        steps = values.pop("steps", ())
        iteration = int(iterations.max()) if len(iterations) else others.pop("iteration", 0)
        others = {"iteration": iteration, "steps": _rows(steps), **others}
        return cls(batch=batch, metrics=flatten_metrics(values), **others)

    def with_draws_only(self, held: NDArray[np.bool_]) -> Self:
        """Return the record with a batch in which only these draws count."""
        return replace(self, batch=with_voting_draws(self.batch, held))


@dataclass(frozen=True)
class Stateful(Component, ABC):
    """Base class of components with state, in any phase.

    The component may read the state any number of times; it is that of the iteration's start. `next` runs once, in
    `Collector.end_iteration`, on the closed iteration. So a state is a fold over committed iterations and survives a
    crash. It is stored under the component's place in the recipe: `advantage[0].TrackedBaseline`.
    """

    @abstractmethod
    def initial_state(self) -> State:
        """Return the state before the first iteration."""

    @abstractmethod
    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the state of the next iteration, from this state and the closed iteration. `state` is not modified."""


@dataclass(frozen=True)
class StatefulComponent(BatchComponent, Stateful, ABC):
    """A component that adds columns from its state, by two pure functions: `add_columns` and `next`."""

    @abstractmethod
    def add_columns(self, state: State, batch: Batch) -> Batch:
        """Return `batch` with the columns of `makes` added, using the state at the start of the iteration."""

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns of `makes` added, as in the first iteration."""
        return self.add_columns(self.initial_state(), batch)


def split_arrays(state: Mapping[str, Any]) -> tuple[State, dict[str, NDArray[Any]]]:
    """Split a state into its plain values and its arrays by path, as a store has it; `join_arrays` is the inverse.

    A path joins the keys of the tables by `/`; in a key `~` is written `~0` and `/` is written `~1` (RFC 6901).

    Raises:
        RecipeError: an array has a dtype or shape that a state cannot hold.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.component.state import join_arrays, split_arrays
        >>> state = {"select[0].ComposedSelector": {"seen": 2, "track": {"alpha": np.ones(3)}}}
        >>> split_arrays(state)
        ({'select[0].ComposedSelector': {'seen': 2, 'track': {}}},
         {'select[0].ComposedSelector/track/alpha': array([1., 1., 1.])})
        >>> join_arrays(*split_arrays(state))["select[0].ComposedSelector"]["track"]["alpha"].tolist()
        [1.0, 1.0, 1.0]
    """
    arrays: dict[str, NDArray[Any]] = {}

    def take(path: str, array: NDArray[Any]) -> None:
        arrays[path] = array

    return _copy_tables(state, take), arrays


def join_arrays(table: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> State:
    """Join the parts that `split_arrays` returned."""
    state = {key: join_arrays(value, {}) if isinstance(value, Mapping) else value for key, value in table.items()}
    for path, array in arrays.items():
        *outer, last = (key.replace("~1", "/").replace("~0", "~") for key in path.split("/"))
        inside = state
        for key in outer:
            inside = inside.setdefault(key, {})
        inside[last] = array
    return state


def pack_state(state: Mapping[str, Any]) -> State:
    """Return a state as plain JSON values, as a batch has it; `unpack_state` reads it back, bit for bit.

    An array is a table with the keys `array`, `shape` and `bytes`. A key `array` of the state itself, such as the name
    of a task, is written `~array`, so the two cannot be confused; `~array` is written `~~array`, and so on.

    Raises:
        RecipeError: an array has a type or a shape that a state cannot hold.

    Example:
        >>> from agentrl_core.component.state import pack_state, unpack_state
        >>> pack_state({"seen": {"array": 2}})
        {'seen': {'~array': 2}}
        >>> unpack_state(pack_state({"seen": {"array": 2}}))
        {'seen': {'array': 2}}
    """
    return _copy_tables(state, _array_as_text, _escaped)


def unpack_state(table: Mapping[str, Any]) -> State:
    """Restore a state from the result of `pack_state`."""
    state: State = {}
    for key, value in table.items():
        name = key[1:] if key[:1] == "~" and key.lstrip("~") == _ARRAY else key
        if isinstance(value, Mapping):
            state[name] = _array(value) if _is_array(value) else unpack_state(value)
        else:
            state[name] = value
    return state


def _is_array(table: Mapping[str, Any]) -> bool:
    """Return whether a table is an array; earlier versions did not escape keys, so `array` alone is not enough."""
    return table.keys() == {_ARRAY, "shape", "bytes"} and isinstance(table[_ARRAY], str)


def _copy_tables(
    state: Mapping[str, Any],
    replacement: Callable[[str, NDArray[Any]], State | None],
    name: Callable[[str], str] = lambda key: key,
    outer: str = "",
) -> State:
    """Copy the tables of a state with other keys, and `replacement(path, array)` for each array; None leaves it out."""
    table: State = {}
    for key, value in state.items():
        path = outer + str(key).replace("~", "~0").replace("/", "~1")
        if isinstance(value, Mapping):
            table[name(key)] = _copy_tables(value, replacement, name, f"{path}/")
        elif not isinstance(value, np.ndarray):
            table[name(key)] = value
        else:
            _check_array(path, value)
            if (kept := replacement(path, value)) is not None:
                table[name(key)] = kept
    return table


def _check_array(path: str, array: NDArray[Any]) -> None:
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2):
        raise RecipeError(
            f"state {path} is an array of {array.dtype} with {array.ndim} dimensions; use bool, integers or floats "
            "with one or two dimensions"
        )


def _escaped(key: str) -> str:
    return f"~{key}" if str(key).lstrip("~") == _ARRAY else key


def _array_as_text(_path: str, array: NDArray[Any]) -> State:
    kept = np.ascontiguousarray(array)
    return {_ARRAY: kept.dtype.str, "shape": list(kept.shape), "bytes": base64.b64encode(kept.tobytes()).decode()}


def _array(table: Mapping[str, Any]) -> NDArray[Any]:
    flat = np.frombuffer(base64.b64decode(table["bytes"]), np.dtype(table[_ARRAY]))
    return flat.reshape(table["shape"]).copy()


def compatible_state(initial: State, kept: Mapping[str, Any]) -> State:
    """Keep the tables of a state that match `initial`, the first state of a changed component.

    Tables with other plain values or arrays are replaced by those of `initial`. An array matches if it has the same
    number of columns and, if it is not empty at first, of rows.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.component.state import compatible_state
        >>> kept = {"seen": 3, "track": {"rate": np.ones(4)}, "arms": {"weights": np.ones(2)}}
        >>> compatible_state({"seen": 0, "track": {"rate": np.zeros(0)}, "arms": {"weights": np.zeros(3)}}, kept)
        {'seen': 3, 'track': {'rate': array([1., 1., 1., 1.])}, 'arms': {'weights': array([0., 0., 0.])}}
    """
    if not initial:
        return dict(kept)
    tables: dict[str, State] = {name: dict(value) for name, value in initial.items() if isinstance(value, Mapping)}
    if not all(name in kept and _is_compatible(initial[name], kept[name]) for name in initial if name not in tables):
        return initial
    own = {name: kept[name] if isinstance(kept.get(name), Mapping) else value for name, value in tables.items()}
    return {**kept, **{name: compatible_state(tables[name], value) for name, value in own.items()}}


def _is_compatible(initial: Any, kept: Any) -> bool:
    if not isinstance(initial, np.ndarray) or not isinstance(kept, np.ndarray):
        return not isinstance(kept, Mapping) and isinstance(initial, np.ndarray) == isinstance(kept, np.ndarray)
    same = initial.dtype.kind == kept.dtype.kind and initial.shape[1:] == kept.shape[1:] and initial.ndim == kept.ndim
    return same and len(initial) in (0, len(kept))


def _rows(steps: object) -> tuple[Mapping[str, float], ...]:
    """Turn columns of step metrics into one table per step."""
    if not steps:
        return ()
    if not isinstance(steps, Mapping):
        raise InvalidInputError(f"metrics: steps={steps!r:.60} is not a table; pass Updates.metrics unchanged")
    lengths = {name: len(values) for name, values in steps.items()}
    if len(set(lengths.values())) != 1:
        raise InvalidInputError(
            f"metrics: the lists of steps have unequal lengths ({lengths!r:.200}); pass Updates.metrics unchanged"
        )
    rows = zip(*steps.values(), strict=True)
    return tuple(
        {name: float(value) for name, value in zip(steps, row, strict=True) if value is not None} for row in rows
    )
