"""Progress of running rollouts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Progress:
    """Counters of running rollouts, updated in place; progress displays only read them.

    Attributes:
        turns: actions with an answer of the environment.
        tokens: generated tokens, without those from a rollout log.
        running: running branches.
        at_engine: branches that wait for an engine.
        at_environment: branches that wait for an environment.
        ended: ended branches.
        failed: ended branches that failed.
        repairs: rebuilt episodes and retried requests.
        stored_tokens: tokens stored in the forest, shared prompts once.
        path_tokens: tokens of all paths, shared ones counted for each.
        abandoned: threads abandoned because a call of an environment took too long.
        tool_results: actions with a tool result.
        seconds: seconds since the start.
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
        """Seconds since the collection began."""
        return time.monotonic() - self._began

    @property
    def sharing(self) -> float:
        """Tokens of all paths over stored tokens; 1 without sharing."""
        return self.path_tokens / self.stored_tokens if self.stored_tokens else 1.0

    def grew(self, tokens: int, *, shared: bool) -> None:
        """Count new tokens of a path; `shared` ones were already stored."""
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
