"""Loops killed at their writes: programs of agents, evaluations, imports, and `agentrl train`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
WRITES = {"append", "flush", "close_iteration", "close"}
FILES = {"new_folder", "rename_whole", "save_checkpoint", "drop_checkpoints"}


PLACES = {
    *(f"{when} RolloutLog.append" for when in ("before", "in", "after")),
    *(f"{when} {write}" for when in ("before", "after") for write in WRITES),
}


def killed(folder: Path, kind: str, which: str) -> set[str]:
    """Kill the loop at writes; return the places, after a check that each kill was harmless."""
    command = [sys.executable, str(SUPPORT / "killed_loops.py"), str(folder), kind, which]
    completed = subprocess.run(command, capture_output=True, text=True, cwd=SUPPORT, check=False)
    assert completed.returncode == 0, completed.stderr[-2000:]
    runs = [json.loads(line) for line in completed.stdout.splitlines()]
    assert [run for run in runs if run["wrong"]] == []
    return {run["place"] for run in runs}


@pytest.mark.slow
@pytest.mark.parametrize("which", ["each", pytest.param("all", marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["agents", "evaluate", "imports"])
def test_a_kill_at_a_write_changes_nothing(tmp_path, kind, which) -> None:
    assert killed(tmp_path, kind, which) == PLACES


@pytest.mark.slow
@pytest.mark.parametrize("which", ["before drop_checkpoints", pytest.param("each", marks=pytest.mark.full)])
def test_a_kill_of_agentrl_train_changes_nothing(tmp_path, which) -> None:
    files = {f"{when} {name}" for when in ("before", "after") for name in FILES}
    files |= {f"{when} new_file" for when in ("before", "in", "after")}
    assert killed(tmp_path, "train", which) == ({which} if which != "each" else PLACES | files)
