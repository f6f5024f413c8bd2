"""The examples run, their output matches the gallery, and the gallery has all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, text_of

EXAMPLES = ROOT / "examples"
PRINTED = ("mcp_tools", "openai_agent", "own_component", "own_rollout", "polars_analysis", "textworld_game")
"""Examples whose output is equal on every machine: a script plays the model."""
ELSEWHERE = {
    "collectors": "tests/train/test_example_of_collectors.py",
    "ddp_accelerate": "tests/model",
    "fsdp2": "tests/model",
    "langgraph_calculator": "tests/agents/test_example.py",
    "largest_number": "tests",
    "lora": "tests/engine/test_lora_example.py",
}
"""Examples that run in tests of their own."""
NEEDS = {"mcp_tools": "mcp", "openai_agent": "openai", "textworld_game": "textworld"}
LONGEST = 95


def sections() -> dict[str, str]:
    """Return the parts of the gallery by the example that they show."""
    parts = re.split(r"^## ", text_of("gallery"), flags=re.MULTILINE)[1:]
    return {match[1]: part for part in parts if (match := re.search(r"examples/(\w+)\.py", part))}


def printed(name: str, folder: Path, *arguments: str) -> str:
    """Return the output of an example in an empty folder; an error fails the test."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "POLARS_FMT_MAX_COLS": "8"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    completed = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_every_example_is_in_the_gallery_and_tested() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"tiny_vision_model", "vowels"}  # imported by others
    assert len(programs) >= 8
    assert set(sections()) == programs == {*PRINTED, *ELSEWHERE, "calculator", "vision"}
    for name in ELSEWHERE:
        test_files = [path for path in (ROOT / "tests").rglob("*.py") if path.stem != "test_gallery"]
        assert any(re.search(rf"\b{name}\b", path.read_text(encoding="utf-8")) for path in test_files), name


def test_examples_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        if path.stem not in ("collectors", "langgraph_calculator", "fsdp2"):
            assert path.read_text(encoding="utf-8").count("\n") <= LONGEST, path.name


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_the_output_of_an_example_matches_the_gallery(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(name, "polars"))
    blocks = re.findall(r"^```text\n(.*?)^```", sections()[name], re.MULTILINE | re.DOTALL)
    assert blocks == [printed(name, tmp_path)]


@pytest.mark.slow
def test_the_calculator_is_trained(tmp_path: Path) -> None:
    output = printed("calculator", tmp_path, "--iterations", "1", "--tasks", "2", "--steps", "20")
    before, iteration, after = output.splitlines()
    assert before.startswith("held-out success before: ")
    assert iteration.startswith("iteration 0: success ")
    assert after.startswith("held-out success after: ")
    assert (tmp_path / "runs/calculator/manifest").is_dir()


@pytest.mark.slow
def test_the_vision_model_needs_its_images(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    *_, iteration, seeing, blind = printed("vision", tmp_path).splitlines()
    assert re.fullmatch(r"iteration 30: success [01]\.\d\d", iteration)
    success = [float(line.rpartition(": ")[2]) for line in (seeing, blind)]
    assert success[0] > 0.7
    assert success[1] < 0.6  # one of three colours is right by chance
