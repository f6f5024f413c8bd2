"""A run whose ranks are killed, at any of many places, resumes to the batches and parameters of an undisturbed run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
FSDP2 = [
    "0 before fsdp2.from_rank_0",
    "0 after checkpoint.load",
    "0 in RolloutLog.append",
    "0 after Recipe.credit",
    "0 after Pack.run",
    "0 before Tensor.backward",
    "0 before Update.step",
    "0 before FileSystemWriter.finish",
    "0 after checkpoint.save",
    "0 after Transformers.update_weights",
    "0 after Store.append",
    "0 before Store.close_iteration",
    "0 after Store.close_iteration",
    "1 after fsdp2.from_rank_0",
    "1 before checkpoint.load",
    "0 after Recipe.updates",
    "0 before Update.pack",
    "1 after Update.pack",
    "1 before Pack.run",
    "1 after Tensor.backward",
    "1 after Update.step",
    "1 before fsdp2.get_state_dict",
    "1 after FileSystemWriter.write_data",
    "1 before engine.send_weights",
]
"""A rank, and the place at which it is killed."""
DDP = [
    "0 before loop.from_first_rank",
    "0 after Models.annotated",
    "1 before Recipe.updates",
    "0 before Update.step",
    "0 after loop.save_checkpoint",
    "0 after Store.close_iteration",
    "1 after loop.load_checkpoint",
    "1 before Tensor.backward",
    "1 after Update.step",
]
FEW = ["0 before FileSystemWriter.finish", "0 after Store.close_iteration", "1 after FileSystemWriter.write_data"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "places"),
    [
        ("fsdp2", FEW),
        pytest.param("fsdp2", FSDP2, marks=pytest.mark.full),
        pytest.param("ddp", DDP, marks=pytest.mark.full),
    ],
    ids=["few", "fsdp2", "ddp"],
)
def test_a_killed_rank_changes_nothing(tmp_path: Path, loop: str, places: list[str]) -> None:
    command = [sys.executable, str(SUPPORT / "killed_ranks.py"), str(tmp_path), loop, *places]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(command, capture_output=True, text=True, cwd=SUPPORT, env=environment, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    runs = [json.loads(line) for line in completed.stdout.splitlines() if line.startswith("{")]
    assert [run for run in runs if run["wrong"]] == []
    assert [run["place"] for run in runs] == ["none", *places], "each was reached"
