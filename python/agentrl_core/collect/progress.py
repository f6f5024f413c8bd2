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
        stored_tokens: tokens that trajectories put into the forest, prompts that a group shares once.
        path_tokens: tokens of all paths, those that forks and equal prompts share counted for each.
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
    stored_tokens: int = 0
    path_tokens: int = 0
    tool_results: int = 0
    _began: float = field(default_factory=time.monotonic, repr=False)

    @property
    def seconds(self) -> float:
        """Since the collection began."""
        return time.monotonic() - self._began

    @property
    def sharing(self) -> float:
        """How often each stored token is used: tokens of all paths over tokens stored; 1 where nothing is shared."""
        return self.path_tokens / self.stored_tokens if self.stored_tokens else 1.0

    def began(self) -> None:
        """There is one more branch."""
        self.running += 1

    def over(self) -> None:
        """A branch is over."""
        self.running -= 1
        self.ended += 1

    def grew(self, tokens: int, *, shared: bool) -> None:
        """A path got so many tokens; `shared`: others had put them there."""
        self.path_tokens += tokens
        self.stored_tokens += 0 if shared else tokens

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        parts = [
            f"{self.turns} turns ({self.turns / seconds:.1f}/s)",
            f"{self.tokens} tokens ({self.tokens / seconds:.0f}/s)",
            f"{self.running} running ({self.at_engine} at the engine, {self.at_environment} at the environment)",
            f"{self.ended} ended",
        ]
        rare = {"failed": self.failed, "repaired": self.repairs, "threads abandoned": self.abandoned}
        parts += [f"{count} {what}" for what, count in rare.items() if count]
        return ", ".join([*parts, f"sharing {self.sharing:.2f}"] if self.stored_tokens else parts)
