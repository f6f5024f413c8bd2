"""The program that docs/rollouts.md shows runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "rollouts.md"


def test_the_program_runs() -> None:
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = block[block.index("@dataclass") : block.index("world =")]
    assert len([line for line in program.splitlines() if line.strip()]) <= 18
    names: dict[str, object] = {}
    exec(block, names)
    assert names["batch"].num_draws >= 8
