"""How many tokens engines said for the groups of an iteration, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agentrl_core.engine.base import Segment


@dataclass
class TokenCounts:
    """What engines said for a group.

    Attributes:
        tokens: by the version of the weights that said them.
        context: tokens of all contexts that they were asked to go on from.
        cached: those of them that an engine still had, as far as it says.
    """

    tokens: Counter[int] = field(default_factory=Counter)
    context: int = 0
    cached: int = 0

    def add(self, segment: Segment, context: int) -> None:
        """Note a segment, and how long the context was."""
        self.tokens[segment.policy_version] += len(segment.tokens)
        self.context += context
        self.cached += segment.cached_tokens or 0

    def behind(self, drawn: Mapping[str, int]) -> TokenCounts:
        """What was said behind what earlier batches had, by version."""
        rest = Counter({version: count - drawn.get(str(version), 0) for version, count in self.tokens.items()})
        return TokenCounts(rest, self.context, self.cached)

    def older_than(self, version: int) -> int:
        """How many tokens older weights said."""
        return sum(count for said_by, count in self.tokens.items() if said_by < version)

    def versions_behind(self, version: int) -> int:
        """How many versions behind the tokens are, all together."""
        return sum(max(version - said_by, 0) * count for said_by, count in self.tokens.items())


@dataclass
class TokenLedger:
    """What became of the tokens of an iteration: generated + in flight before = consumed + dropped + in flight behind.

    Attributes:
        generated: were said in this iteration.
        consumed: joined the batch with their groups, whenever they were said.
        stale: those of them that were said by weights before the update that has the iteration's number.
        behind: how many versions before that those that were consumed were said, all together.
        dropped: those of groups that were stopped, and that nobody draws.
        in_flight: were said for groups that go on, and have been in no batch.
        context: tokens of all contexts that engines were given for the groups of the batch.
        cached: those of them that an engine still had, as far as it says so.
    """

    generated: int = 0
    consumed: int = 0
    stale: int = 0
    behind: int = 0
    dropped: int = 0
    in_flight: int = 0
    context: int = 0
    cached: int = 0

    def consume(self, said: Iterable[TokenCounts], iteration: int) -> None:
        """Groups join the batch."""
        for each in said:
            self.consumed += each.tokens.total()
            self.behind += each.versions_behind(iteration)
            self.stale += each.older_than(iteration)
            self.context += each.context
            self.cached += each.cached

    def balance(self, before: int) -> None:
        """Everything else is known: what was said follows."""
        self.generated = self.consumed + self.dropped + self.in_flight - before
