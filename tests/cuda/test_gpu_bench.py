"""bench/gpu.py runs through on a toy without a GPU, and reports that if a GPU was requested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parents[2] / "bench" / "gpu.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_step_runs_on_cpu() -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed", exc_type=ImportError)
    completed = run("--device", "cpu", "--small", "--no-compile")
    assert completed.returncode == 0, completed.stderr
    for bar in ("B1", "B2", "B3", "B4", "B5", "B6", "B8"):
        assert f"\n{bar} " in completed.stdout
    exact = [line for line in completed.stdout.splitlines() if line.startswith(("B4", "B5", "B6"))]
    assert len(exact) == 9
    assert all("reached" in line for line in exact), completed.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_reported() -> None:
    completed = run()
    assert completed.returncode == 2
    assert completed.stderr.splitlines() == [
        "there is no CUDA device here; give --device cpu --small to see the steps run"
    ]
