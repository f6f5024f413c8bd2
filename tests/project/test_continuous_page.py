"""The loop on docs/continuous.md runs as written."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "continuous.md"


def test_the_loop_runs() -> None:
    loop, held, cut = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(loop, names)
    assert names["collector"].iteration == 3  # type: ignore[attr-defined]
    assert names["batch"].num_draws == 16  # type: ignore[attr-defined]
    exec(held, names)
    assert type(names["recipe"].hooks).__name__ == "LimitStaleness"  # type: ignore[attr-defined]
    exec(cut, names)
    assert names["batch"].num_draws == 16  # type: ignore[attr-defined]
    assert names["april"].batch_policy.in_flight(4) == 8  # type: ignore[attr-defined]
