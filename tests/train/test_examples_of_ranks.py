"""The examples for several ranks train, and a stopped run ends like an uninterrupted one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import agentrl_core as arl

EXAMPLES = Path(__file__).parents[2] / "examples"


def rewards(example: str, folder: Path, iterations: int) -> list[float]:
    """Run an example; return the printed rewards."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = ["--folder", str(folder), "--iterations", str(iterations)] + ["--cpu"] * (example != "fsdp2")
    completed = subprocess.run(
        [*launch, str(EXAMPLES / f"{example}.py"), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert completed.returncode == 0, completed.stderr
    return [float(number) for number in re.findall(r"^iteration \d+: reward (\S+)$", completed.stdout, re.MULTILINE)]


@pytest.mark.slow
@pytest.mark.parametrize("example", ["fsdp2", "ddp_accelerate"])
def test_a_resumed_run_ends_like_one_that_was_not_stopped(example: str, tmp_path: Path) -> None:
    uninterrupted, resumed = tmp_path / "whole", tmp_path / "resumed"
    at_once = rewards(example, uninterrupted, 2)
    assert len(at_once) == 2
    assert rewards(example, resumed, 1) + rewards(example, resumed, 2) == at_once
    with arl.Store.open(uninterrupted) as one, arl.Store.open(resumed) as other:
        for iteration in range(2):
            expected, result = one.batch(iteration=iteration), other.batch(iteration=iteration)
            for column in ("token", "behaviour_logprob"):
                assert np.array_equal(
                    expected.column(column, "node_token"), result.column(column, "node_token"), equal_nan=True
                )


@pytest.mark.full
@pytest.mark.parametrize("example", ["fsdp2", "ddp_accelerate"])
def test_the_examples_learn(example: str, tmp_path: Path) -> None:
    curve = rewards(example, tmp_path / "run", 16)
    assert np.mean(curve[-3:]) > np.mean(curve[:3]) + 0.05
