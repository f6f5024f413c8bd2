"""Arrays of a state are restored exactly, whatever changed in between, and small changes write few bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core import Forest, Store
from agentrl_core.exceptions import InvalidInputError

TYPES = ("bool", "uint8", "int32", "int64", "float32", "float64")


def close(store: Store, arrays: dict[str, np.ndarray]) -> None:
    batch = store.rebase(Forest(iteration=store.iteration).freeze())
    store.append(batch, iteration=store.iteration)
    store.close_iteration(batch, {"at": store.iteration}, arrays)


def same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return list(actual) == sorted(expected) and all(
        actual[name].dtype == array.dtype
        and actual[name].shape == array.shape
        and actual[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_arrays_come_back_after_every_close_and_reopening(
    tmp_path_factory: pytest.TempPathFactory, seed: int, closes: int
) -> None:
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    path = tmp_path_factory.mktemp("run") / "run"
    store = Store.open(path, sync="never")
    for _ in range(closes):
        for name in ("a/priority", "b", "c~1d"):
            what = rng.integers(0, 5)
            if what == 0:
                arrays.pop(name, None)
            elif what == 1 or name not in arrays:
                shape = (int(rng.integers(0, 60)), *([int(rng.integers(0, 4))] if rng.random() < 0.4 else []))
                arrays[name] = (rng.random(shape) * 9).astype(rng.choice(TYPES))
            elif what == 2:
                rows = rng.integers(0, 5)
                arrays[name] = np.concatenate([arrays[name][rng.integers(0, 3) :], arrays[name][:rows]])
            elif len(arrays[name]):
                arrays[name] = arrays[name].copy()
                arrays[name][rng.integers(0, len(arrays[name]))] = 1
        close(store, arrays)
        assert same(store.arrays, arrays)
        with Store.open(path, read_only=True) as reader:
            assert same(reader.arrays, arrays)
        if rng.random() < 0.3:
            store.close()
            store = Store.open(path, sync="never")
            assert same(store.arrays, arrays)
        if rng.random() < 0.3:
            store.compact()
        if rng.random() < 0.3:
            store.drop_before(store.iteration, rewrite=True)
            assert same(store.arrays, arrays)
    assert store.verify() == []
    store.close()


def test_only_changed_values_of_an_array_are_written(tmp_path: Path) -> None:
    numbers = np.arange(10_000.0)
    with Store.open(tmp_path / "run", sync="never") as store:
        for _ in range(5):
            numbers = numbers.copy()
            numbers[[3, 77]] += 0.5
            close(store, {"memory/priority": numbers})
        rows = pl.concat(pl.read_ipc(path) for path, *_ in store.files("states"))
    assert rows["kind"].to_list() == [0, 1, 1, 1, 1]
    assert rows["values"].list.len().to_list() == [80_000, 16, 16, 16, 16]
    assert rows["indices"].to_list()[1] == [3, 77]


@pytest.mark.parametrize("wrong", [np.zeros((1, 1, 1)), np.array(["text"]), np.array(1.0), [1.0], np.zeros(1, complex)])
def test_an_invalid_state_array_is_refused(tmp_path: Path, wrong: object) -> None:
    with Store.open(tmp_path / "run") as store:
        with pytest.raises(InvalidInputError, match=r"arrays\['a'\]"):
            close(store, {"a": wrong})  # type: ignore[dict-item]
        assert store.iteration == 0
