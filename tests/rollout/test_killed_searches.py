"""Equal seeds give equal searches, even if the process is killed repeatedly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import searching

import agentrl_core as arl

TABLES = ("nodes", "steps", "trajectories", "draws", "decisions")
NAMES = list(searching.programs(Path()))


def run(folder: Path, every: int) -> dict[str, int]:
    """Return how often each program was killed."""
    command = [sys.executable, searching.__file__, str(folder), str(every)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1200).stdout
    return {name: int(kills) for name, kills in (line.split() for line in output.splitlines())}


def tables(folder: Path) -> dict[str, Any]:
    with arl.Store.open(folder, read_only=True) as store:
        assert store.iteration == searching.ITERATIONS
        assert store.verify() == []
        return {name: pl.DataFrame(getattr(store, name)).drop("created_us", strict=False).rows() for name in TABLES}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searches")
    assert set(run(folder, 0).values()) == {0}
    return folder


@pytest.mark.parametrize("every", [pytest.param(3, marks=pytest.mark.full), 7])
def test_a_killed_search_resumes_to_the_same_tree(tmp_path: Path, undisturbed: Path, every: int) -> None:
    # A store's folder is an option of programs that read it: the same path leads to each store in turn.
    kills = run(tmp_path, every)
    assert list(kills) == NAMES
    assert min(kills.values()) >= 1
    for name in NAMES:
        actual, expected = tables(tmp_path / name), tables(undisturbed / name)
        assert actual["decisions"], name
        for table in TABLES:
            assert actual[table] == expected[table], f"{name}: {table}"
