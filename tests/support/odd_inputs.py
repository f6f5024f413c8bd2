"""Odd values of the right type, and calls in which some arguments are replaced by them."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agentrl_core.exceptions import AgentRLError, AgentRLWarning, InternalError

WIDE = bool(os.environ.get("AGENTRL_FULL_TESTS"))
"""Whether the wide profile runs, with many more examples of each entry point; `make test-full` sets it."""

FLOATS: tuple[float, ...] = (
    math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-46, 5e-324, -1.5, 0.5, 1e38, 3.5e38, 1e39, -1e39, 1e300, -1e300,
    1.0 + 1e-9, 10**400,
)  # fmt: skip
WHOLES: tuple[int, ...] = (
    0, 1, -1, 2, 7, 255, 256, -(2**31), 2**31 - 1, 2**31, 2**32 - 1, 2**32,
    2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 10**400
)  # fmt: skip
KEY_WORDS: tuple[str, ...] = (
    "array", "~array", "shape", "bytes", "dtype", "keys", "state", "selection", "components", "metrics", "broken_down",
    "score", "reward", "advantage", "task_id", "group_id", "draws", "facts", "earlier_steps", "replaced_by", "pruned",
    "hex", "float", "base64", "joint", "of", "segment", "effect", "observation", "prompt", "__class__", "__init__",
    "None", "null", "true", "NaN", "Infinity", "0", "-1", "a/b", "a~1b", "a.b", "a[0]", "a,b", "a=b",
    "{}", "%s", "#", "..",
)  # fmt: skip
"""Words that the package itself uses: keys of its tables, states, logs and metrics, and pieces of its syntax."""
TEXTS: tuple[str, ...] = (
    "", " ", "\0", "a\0b", "\n", "\r\n", "\ud800", "a\udfffb", "\u202ee", "e\u0301", "\u00e9", "\U0001f600", "\ufeff",
    "/", "../../x",
    "<script>", "'; --", '"', "\\", "x" * 300, "y" * 70_000,
)  # fmt: skip
BYTES: tuple[bytes, ...] = (b"", b"\0", b"\xff\xfe", b"a", b"array", b"x" * 70_000)


def deep(levels: int) -> Any:
    """Return a value nested this deep in lists and tables."""
    nested: Any = 1
    for level in range(levels):
        nested = [nested] if level % 2 else {"a": nested}
    return nested


floats = st.sampled_from(FLOATS) | st.floats(width=32) | st.sampled_from([1, np.float32(0.5), np.float64(math.nan)])
wholes = st.sampled_from(WHOLES) | st.integers(-3, 12) | st.sampled_from([True, np.int64(-1), np.int32(2), np.uint8(3)])
texts = (
    st.sampled_from(TEXTS) | st.sampled_from(["\ud800", "", "\0"]) | st.sampled_from(KEY_WORDS) | st.text(max_size=4)
)
plain = st.recursive(
    floats.filter(lambda each: not isinstance(each, np.generic)) | texts | wholes | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
tables = st.dictionaries(texts, plain, max_size=3) | st.sampled_from([deep(20), deep(70), deep(200)]).map(
    lambda nested: {"deep": nested}
)


def odd(value: Any) -> st.SearchStrategy[Any]:
    """Return odd values of the type of a valid one."""
    if isinstance(value, bool):
        return st.booleans() | st.sampled_from([np.True_, np.False_])
    if isinstance(value, int):
        return wholes
    if isinstance(value, float):
        return floats
    if isinstance(value, str):
        return texts
    if isinstance(value, bytes):
        return st.sampled_from(BYTES) | st.binary(max_size=40)
    if isinstance(value, np.ndarray):
        return _odd_arrays(value)
    if isinstance(value, Mapping):
        return tables | st.tuples(texts, plain).map(lambda entry: {**value, entry[0]: entry[1]})
    if isinstance(value, Sequence):
        kind = type(value)
        some = odd(value[0]) if value else plain
        longer = st.sampled_from([kind(), kind([*value, *value]), kind(value[:1]), kind([*value] * 3000)])
        return longer | st.lists(some, min_size=len(value), max_size=len(value)).map(kind)
    raise TypeError(f"no odd values of {type(value).__name__} are known; give a valid value of another type")


def _odd_arrays(value: np.ndarray) -> st.SearchStrategy[Any]:
    """Return other numbers, and the same ones in another form."""
    numbers: st.SearchStrategy[Any] = odd(value.reshape(-1)[:1].tolist()[0])
    flat = st.lists(numbers, min_size=value.size, max_size=value.size).map(
        lambda each: np.array(each).reshape(value.shape)
    )
    wider = np.repeat(value, 2, axis=0)
    forms = [value[:0], wider, wider[::2], value[::-1], value.astype(">f8" if value.dtype.kind == "f" else ">i8")]
    forms += [value.astype(object), value.reshape(1, *value.shape), value.astype(np.float64), value.tolist()]
    return flat | st.sampled_from(range(len(forms))).map(forms.__getitem__)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a call."""
    if path:
        yield path
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from places(entry, (*path, key))
    elif isinstance(value, (list, tuple)):
        for key, entry in enumerate(value):
            yield from places(entry, (*path, key))


def at(value: Any, path: Sequence[Any]) -> Any:
    """Return the value at a path."""
    for key in path:
        value = value[key]
    return value


def changed(value: Any, path: Sequence[Any], new: Any) -> Any:
    """Return the call with another value at a path."""
    if not path:
        return new
    key, *rest = path
    if isinstance(value, tuple):
        return (*value[:key], changed(value[key], rest, new), *value[key + 1 :])
    copied = copy.copy(value)
    copied[key] = changed(value[key], rest, new)
    return copied


@dataclass(frozen=True)
class EntryPoint:
    """An entry point: a valid call, and a function that runs it and asserts that all of it is kept.

    Args:
        call: valid arguments by name.
        run: takes the arguments and an empty folder. It raises one of the package's errors, or asserts that the
            arguments are there after a restart.
        refuses: whether it has to refuse some odd values.
        words: names that a message may use for an argument instead, separated by spaces.
        last: whether a message has to name the option of a recipe's component, or a name in it, not just the recipe.
        examples: number of odd calls.
    """

    call: Mapping[str, Any]
    run: Callable[[dict[str, Any], Path], object]
    refuses: bool = True
    words: Mapping[str, str] | None = None
    last: bool = False
    examples: int = 40


Place = tuple[Any, ...]


def odd_places(call: Mapping[str, Any]) -> st.SearchStrategy[list[tuple[Place, Any]]]:
    """Replace one place of a call, rarely two, by an odd value."""
    possible = [path for path in places(call) if at(call, path) is not None]
    place = st.sampled_from(possible).flatmap(lambda path: odd(at(call, path)).map(lambda value: (path, value)))
    return st.lists(place, min_size=1, max_size=2, unique_by=lambda each: each[0][0])


def try_odd_values(entry: EntryPoint, folders: pytest.TempPathFactory) -> None:
    """Pass odd values to an entry point, and check each result."""
    counts = {"kept": 0, "refused": 0}
    entry.run(dict(copy.deepcopy(entry.call)), folders.mktemp("valid"))

    @settings(
        max_examples=entry.examples * (10 if WIDE else 1),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        database=None,
    )
    @given(odd_places(entry.call))
    def attempt(case: list[tuple[Place, Any]]) -> None:
        made = dict(entry.call)
        for path, value in case:
            made = changed(made, path, value)
        try:
            entry.run(made, folders.mktemp("odd"))
        except InternalError:
            raise
        except (AgentRLError, AgentRLWarning) as error:
            counts["refused"] += 1
            names_it(entry, case, str(error))
        except Exception as error:
            error.add_note(f"odd: {shown(case)}")
            raise
        else:
            counts["kept"] += 1

    attempt()
    assert counts["kept"], "no odd value was kept: the entry point was not reached"
    assert counts["refused"] or not entry.refuses, "no odd value was refused"


def shown(case: Sequence[tuple[Place, Any]]) -> str:
    """Return the odd values of a call, each with its place."""
    return "; ".join(f"{'/'.join(map(str, path))} = {value!r:.200}" for path, value in case)


def names_it(entry: EntryPoint, case: Sequence[tuple[Place, Any]], message: str) -> None:
    """Assert that a message names one of the odd arguments, or an entry of an odd table."""
    paths = [path for path, _ in case]
    inner = {key for _, value in case if isinstance(value, Mapping) for key in value if key}
    # A value with a name of its own, such as a column, is reported by that name.
    inner |= {value for path, value in case if path == ("name",) and isinstance(value, str) and value}
    keys = [[part for part in path if isinstance(part, str)] for path in paths]
    names = {part for parts in keys for part in (parts[2:] or parts[-1:] if entry.last else parts)}
    names |= {word for name in names for word in (entry.words or {}).get(name, name).split()}
    # If two lengths differ, the message may name either; if a table is incomplete, the object that it describes.
    names |= {"recipe", "component"} if entry.last and any(isinstance(each, Mapping) for _, each in case) else set()
    names |= set() if entry.last else set(entry.call)
    described = f"{message} (odd: {shown(case)})"
    assert any(name in message for name in names | inner), f"the message names none of {sorted(names)}: {described}"
    assert len(message) < 1500, described


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, whatever types hold them; NaN and None are equal (value unknown)."""
    if isinstance(one, np.ndarray | np.generic):
        one = one.tolist()
    if isinstance(other, np.ndarray | np.generic):
        other = other.tolist()
    one, other = (None if isinstance(each, float) and math.isnan(each) else each for each in (one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
