"""Hide the progress of a training loop."""

from __future__ import annotations

from typing import Any


class Quiet:
    """A progress display that shows nothing."""

    def phase(self, name: str, total: int) -> None:
        pass

    def step(self, count: int = 1, /, **shown: float) -> None:
        pass

    def rollouts(self, progress: Any) -> None:
        pass
