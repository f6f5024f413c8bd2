"""A training loop's progress that is not shown."""

from __future__ import annotations

from typing import Any


class Quiet:
    """Shows no progress."""

    def phase(self, name: str, total: int) -> None:
        pass

    def step(self, count: int = 1, /, **shown: float) -> None:
        pass

    def rollouts(self, progress: Any) -> None:
        pass
