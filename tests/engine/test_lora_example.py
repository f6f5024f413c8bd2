"""The example that trains a LoRA policy runs, with each of its engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytest.importorskip("peft")
EXAMPLE = Path(__file__).parents[2] / "examples" / "lora.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_the_example_trains_and_saves_an_adapter(name: str, tmp_path: Path) -> None:
    if name == "vllm":
        pytest.importorskip("vllm")
    done = subprocess.run(
        [
            sys.executable,
            EXAMPLE,
            "--engine",
            name,
            "--iterations",
            "2",
            "--steps",
            "200",
            "--folder",
            tmp_path / "saved",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert [line.split(" success ")[0] for line in lines if " success " in line] == ["iteration 0", "iteration 1"]
    config = json.loads((tmp_path / "saved" / "adapter_config.json").read_text())
    assert config["r"] == 16
    adapter = load_file(tmp_path / "saved" / "adapter_model.safetensors")
    assert all(weight.abs().max() > 0 for name, weight in adapter.items() if "lora_B" in name)  # they start at 0
