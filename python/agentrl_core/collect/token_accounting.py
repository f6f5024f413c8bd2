"""Account for all tokens generated for the groups of an iteration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agentrl_core.engine.base import Segment


@dataclass
class TokenCounts:
    """Counts of generated tokens for a group.

    Attributes:
        tokens: by the version of the weights that generated them.
        context: tokens of all requested contexts.
        cached: context tokens in the engine's cache, as far as it reports them.
    """

    tokens: Counter[int] = field(default_factory=Counter)
    context: int = 0
    cached: int = 0

    def add(self, segment: Segment, context: int) -> None:
        """Add a segment, with the length of its context."""
        self.tokens[segment.policy_version] += len(segment.tokens)
        self.context += context
        self.cached += segment.cached_tokens or 0

    def undrawn(self, drawn: Mapping[str, int]) -> TokenCounts:
        """Return tokens not yet in earlier batches, by policy version."""
        rest = Counter({version: count - drawn.get(str(version), 0) for version, count in self.tokens.items()})
        return TokenCounts(rest, self.context, self.cached)

    def older_than(self, version: int) -> int:
        """Return the number of tokens of older weights."""
        return sum(count for sampled_by, count in self.tokens.items() if sampled_by < version)

    def versions_behind(self, version: int) -> int:
        """Return the sum of the tokens' version lags."""
        return sum(max(version - sampled_by, 0) * count for sampled_by, count in self.tokens.items())


@dataclass
class TokenLedger:
    """Token balance of an iteration: generated + in flight before = consumed + dropped + in flight after.

    Attributes:
        generated: tokens generated in this iteration.
        consumed: tokens of groups in the batch, whenever generated.
        stale: consumed tokens of weights before the update with the iteration's number.
        behind: sum of the version lags of consumed tokens.
        dropped: tokens of stopped groups without draws.
        in_flight: tokens of continuing groups that are not in a batch yet.
        context: tokens of all requested contexts of the batch's groups.
        cached: context tokens in the engine's cache, as far as it reports them.
    """

    generated: int = 0
    consumed: int = 0
    stale: int = 0
    behind: int = 0
    dropped: int = 0
    in_flight: int = 0
    context: int = 0
    cached: int = 0

    def consume(self, counts: Iterable[TokenCounts], iteration: int) -> None:
        """Count the tokens of groups that join the batch."""
        for each in counts:
            self.consumed += each.tokens.total()
            self.behind += each.versions_behind(iteration)
            self.stale += each.older_than(iteration)
            self.context += each.context
            self.cached += each.cached

    def balance(self, before: int) -> None:
        """Compute `generated` from the other counts."""
        self.generated = self.consumed + self.dropped + self.in_flight - before
