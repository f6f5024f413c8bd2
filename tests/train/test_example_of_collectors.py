"""The example with four collectors and one trainer trains, and resumes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import agentrl_core as arl

EXAMPLE = Path(__file__).parents[2] / "examples" / "collectors.py"


def iterations_of(folder: Path, until: int) -> list[int]:
    """Run the example until an iteration; return the printed iterations."""
    completed = subprocess.run(
        [sys.executable, str(EXAMPLE), "--folder", str(folder), "--iterations", str(until)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert completed.returncode == 0, completed.stderr
    assert "Traceback" not in completed.stderr, "a collector failed"
    return [int(number) for number in re.findall(r"^iteration (\d+): reward \S+$", completed.stdout, re.MULTILINE)]


@pytest.mark.slow
def test_four_collectors_fill_one_store(tmp_path: Path) -> None:
    assert iterations_of(tmp_path, 1) == [0]
    assert iterations_of(tmp_path, 2) == [1]
    with arl.Store.open(tmp_path) as store:
        assert store.iteration == 2
        assert not store.verify()
        for iteration in range(2):
            batch = store.batch(iteration=iteration)
            assert (batch.num_draws, batch.num_groups) == (64, 8)
            sampled = batch.column("policy_version", "token")
            assert set(sampled.tolist()) == {iteration}, "sampled by other weights than those of the iteration"
        seeds = pl.DataFrame(store.nodes)["seed"].drop_nulls()
        assert len(seeds) == 128
        assert seeds.is_unique().all()
