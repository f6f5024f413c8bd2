"""What the pages of docs show runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {page.name: re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) for page in DOCS.glob("*.md")}
BLOCKS = [
    pytest.param(block, id=f"{name} {number}") for name, blocks in PAGES.items() for number, block in enumerate(blocks)
]


def test_there_are_blocks() -> None:
    assert PAGES["rollouts.md"]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(block, names)
    if "batch" in names:
        assert names["batch"].num_draws > 0  # type: ignore[attr-defined]
