"""Weights spread over two ranks reach the engine of one, gathered one at a time; failures reach both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl_core import engine
from agentrl_core.exceptions import InvalidInputError

PROGRAM = Path(__file__).parents[1] / "support" / "weights_on_ranks.py"
SLOW = [
    "fsdp2-head",
    "fsdp2-root",
    "fsdp2-lora",
    "fsdp2-state",
    "fsdp2-both",
    "fsdp1",
    "fsdp1-lora",
    "ddp-lora",
    "accelerate",
]


def report(mode: str) -> Any:
    completed = subprocess.run(
        [sys.executable, PROGRAM, mode],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout[completed.stdout.index("{") :])[mode]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fsdp2", *SLOW])
def test_the_engine_of_rank_0_has_the_weights_of_all_ranks(mode: str) -> None:
    results = report(mode)
    assert all(isinstance(each, dict) for each in results), results
    first, second = results
    assert first["difference"] < 1e-5
    assert first["version"] == 1
    assert first["unchanged"]
    assert second["unchanged"]
    assert "version is 'new'" in first["messages"][0]
    assert (
        "has shape (32,), and the engine's has (7,); give the model of the engine's checkpoint (nothing was changed)"
        in first["messages"][1]
    )
    if mode.endswith("both"):  # an engine on each rank
        assert second["difference"] < 1e-5
    if "fsdp" in mode and not mode.endswith("both"):
        assert [each.startswith("update_weights: the engine of rank 0 failed: Inv") for each in second["messages"]] == [
            True,
            True,
        ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fsdp2-alone", "fsdp2-state-alone"])
def test_the_engine_has_the_weights_of_an_only_rank(mode: str) -> None:
    [result] = report(mode)
    assert isinstance(result, dict), result
    assert result["difference"] < 1e-5
    assert result["unchanged"]


@pytest.mark.slow
def test_sharded_weights_are_never_whole_at_once() -> None:
    results = report("memory")
    for rank in results:
        assert rank["whole"] > 0.5 * rank["bytes"], "all at once need this much, so the measure works"
        assert rank["peak"] < 0.15 * rank["bytes"], results


def test_weights_are_not_sent_by_the_rank_of_the_engine() -> None:
    with pytest.raises(InvalidInputError, match=r"send_weights: this is rank 0"):
        engine.send_weights({})
