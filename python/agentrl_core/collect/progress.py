"""How a collection goes, for whoever watches."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Progress:
    """What is counted while rollouts run. A watcher gets the same value again and again, and only reads it.

    Attributes:
        turns: actions that the environment answered.
        tokens: tokens that engines generated (those that a journal gave back not counted).
        running: branches that are driven now.
        at_engine: those of them that wait for an engine.
        at_environment: those that wait for an environment.
        ended: branches that are over.
        failed: those of them that broke down.
        repairs: episodes that were built anew after they broke down, and requests that an engine was asked again.
        abandoned: threads that were given up, because the call of an environment in them took too long.
        tool_results: actions that a tool answered.
        seconds: since the collection began.
    """

    turns: int = 0
    tokens: int = 0
    running: int = 0
    at_engine: int = 0
    at_environment: int = 0
    ended: int = 0
    failed: int = 0
    repairs: int = 0
    abandoned: int = 0
    tool_results: int = 0
    _began: float = field(default_factory=time.monotonic, repr=False)

    @property
    def seconds(self) -> float:
        """Since the collection began."""
        return time.monotonic() - self._began

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        parts = [
            f"{self.turns} turns ({self.turns / seconds:.1f}/s)",
            f"{self.tokens} tokens ({self.tokens / seconds:.0f}/s)",
            f"{self.running} running ({self.at_engine} at the engine, {self.at_environment} at the environment)",
            f"{self.ended} ended",
        ]
        rare = {"failed": self.failed, "repaired": self.repairs, "threads abandoned": self.abandoned}
        return ", ".join([*parts, *(f"{count} {what}" for what, count in rare.items() if count)])
