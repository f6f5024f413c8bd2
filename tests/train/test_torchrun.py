"""`agentrl train` on ranks of torchrun: the same run as one process, whatever their number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import agentrl_core as arl

OPTIONS = [
    "--rollouts",
    "16",
    "--group-size",
    "4",
    "--warm-start-steps",
    "30",
    "--held-out",
    "8",
    "--turn-tokens",
    "12",
]
OPTIONS += ["--learning-rate", "1e-3", "--pack-tokens", "512"]


def train(run: Path, ranks: int, *options: str) -> str:
    """Train in processes of their own; return their output."""
    agentrl = [str(Path(sys.executable).parent / "agentrl"), "train", "--run", str(run), *options]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    command = [*torchrun, "--nproc-per-node", str(ranks), "--", *agentrl] if ranks > 1 else agentrl
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    return completed.stdout


def weights(run: Path, model: str) -> torch.Tensor:
    state = torch.load(next((run / "checkpoints").glob("*.pt")), weights_only=True)["models"][model]
    return torch.cat([value.flatten() for value in state.values()])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["grpo", "ppo"])
def test_two_ranks_train_as_one_and_resume(recipe: str, tmp_path: Path) -> None:
    alone, several = tmp_path / "alone", tmp_path / "several"
    options = ["--recipe", recipe, *OPTIONS]
    train(alone, 1, *options, "--iterations", "2")
    printed = train(several, 2, *options, "--iterations", "1")
    assert printed.count("run directory:") == 1
    train(several, 2, "--iterations", "2", "--resume")
    with arl.Store.open(alone) as one, arl.Store.open(several) as other:
        for iteration in range(2):
            expected, result = one.batch(iteration=iteration), other.batch(iteration=iteration)
            assert np.array_equal(expected.column("token", "token"), result.column("token", "token"))
            np.testing.assert_allclose(
                expected.column("behaviour_logprob", "token"), result.column("behaviour_logprob", "token"), atol=1e-4
            )
    for model in ("policy", "critic") if recipe == "ppo" else ("policy",):
        moved = (weights(alone, model) - weights(several, model)).abs()
        assert moved.mean() < 1e-6, (model, moved.max())


@pytest.mark.slow
def test_the_first_rank_alone_computes_the_credit(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "support" / "credit_on_ranks.py"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(
        [*launch, program, tmp_path], env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    files = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert files == ["grpo-0", "ppo-0"]
    for recipe in ("grpo", "ppo"):
        with arl.Store.open(tmp_path / f"run-{recipe}") as store:
            weights = store.batch(iteration=0).column("weight", "draw")
        assert weights.astype(np.float32).tobytes() == (tmp_path / f"{recipe}-0").read_bytes()
        assert len(weights) == 8


def test_a_refused_run_ends_all_ranks(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="group_size=0"):
        train(tmp_path / "run", 2, "--group-size", "0")
