"""Gradients of packs on two ranks, through the wrappers that synchronise them, equal those of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "wrapped_ranks.py"
SLOW = ["fsdp2-head", "ddp-lora", "fsdp1", "fsdp2", "fsdp2-root", "fsdp2-lora", "accelerate"]


def report(mode: str, program: Path = PROGRAM) -> Any:
    completed = subprocess.run(
        [sys.executable, program, mode],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout[completed.stdout.index("{") :])[mode]


@pytest.mark.parametrize("mode", ["ddp", *(pytest.param(mode, marks=pytest.mark.slow) for mode in SLOW)])
def test_gradients_and_columns_are_those_of_one_process(mode: str) -> None:
    errors = report(mode)
    assert isinstance(errors, dict), errors
    assert len(errors) == 12
    assert max(errors.values()) < 1e-6, errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("ddp.module", "is inside a DistributedDataParallel, which synchronises gradients in its own forward; give"),
        ("fsdp2-rounded", "changes the dtype of what its FSDPLlamaForCausalLM returns; set the output dtype to"),
    ],
)
def test_unsupported_wrapped_models_are_rejected(mode: str, message: str) -> None:
    assert message in report(mode)


@pytest.mark.parametrize(
    "mode",
    ["gemma3 ddp", pytest.param("qwen2_5_vl ddp", marks=pytest.mark.slow), "gemma3 fsdp2", "llava_onevision tower"],
)
def test_images_on_ranks_are_those_of_one_process(mode: str) -> None:
    errors = report(mode, PROGRAM.with_name("images_on_ranks.py"))
    assert isinstance(errors, dict), errors
    assert errors.pop("without images") == 1, "a rank has a pack without images beside one with images"
    assert errors.pop("other calls") == ("tower" in mode), "images of several shapes need several calls of the tower"
    assert max(errors.values()) < 1e-6, errors
