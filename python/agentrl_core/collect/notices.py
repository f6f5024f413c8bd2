"""What a collection has to say without stopping, each kind of it once."""

from __future__ import annotations

import warnings


class Notices:
    """Warnings that are given once each, however many trajectories and iterations have the same to say."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def once(self, kind: str, message: str) -> None:
        """Warn (`RuntimeWarning`), unless something of this kind was said before."""
        if kind not in self._given:
            self._given.add(kind)
            warnings.warn(message, RuntimeWarning, stacklevel=2)
