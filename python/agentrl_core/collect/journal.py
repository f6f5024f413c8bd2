"""What live groups asked and got: written before a program sees it, so that a program that was cut off runs again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np

from agentrl_core import _core
from agentrl_core.collect.journal_codec import read_segment, write_value
from agentrl_core.data.forest import Forest
from agentrl_core.engine.base import Request, Sampling, Segment

_FIRST_MEMBER = 1 << 20
"""Behind whatever a program starts itself."""

CARRIED = "carried"
"""The record behind everything that was carried into an iteration; it says what that is."""
DIGEST_BYTES = 16
"""How long the digest is that stands before each payload."""

Value = TypeVar("Value")


class JournalFile(Protocol):
    """Where a store keeps it."""

    def append(self, name: bytes, payload: bytes) -> None:
        """Add a record."""
        ...

    def records(self) -> Iterable[tuple[bytes, bytes]]:
        """All of them, in order."""
        ...


class Journal:
    """The records of an iteration by name.

    A record answers a question iff the question's digest is the same as then: a program, a recipe or an engine that
    was changed meanwhile gets new answers from where they matter.

    Args:
        file: where they are kept; None: in memory.
    """

    def __init__(self, file: JournalFile | None = None) -> None:
        self._file = file
        self._values: dict[str, tuple[bytes, Any, Callable[[Any], bytes]]] = {}
        """What is at hand of what was recorded since then, with the digest of its question and what writes it."""
        self._written: set[str] = set()
        """What was put into the file since it was read. What was sampled is not kept here beside it, but read again."""
        self._stored: dict[str, bytes] = {}
        """What the file held when it was read: digest and payload."""
        self._replaced: list[tuple[str, Any]] = []
        """What another record has taken the place of, as values or as digest and payload."""
        self._carried: frozenset[str] = frozenset()
        # The iteration before carries from its thread what this one begins with in another.
        self._beginning = threading.Lock()
        self._read()
        self.begin()

    def _read(self) -> None:
        """Have what the file holds at hand."""
        if self._file is None:
            return
        self._written, self._stored, self._replaced = set(), {}, []
        for name, payload in self._file.records():
            title, record = name.decode(), bytes(payload)
            if title == CARRIED:
                self._carried = frozenset(self._stored)
            if self._stored.get(title, record) != record:
                self._replaced.append((title, self._stored[title]))
            self._stored[title] = record

    def _names(self) -> dict[str, None]:
        """All records in their order, at hand."""
        if self._written:
            self._read()
        return dict.fromkeys((*self._stored, *self._values))

    def __len__(self) -> int:
        return len(self._names())

    def begin(self) -> None:
        """The programs are run from their beginnings."""
        with self._beginning:
            self._unasked = self._names()

    @property
    def unasked(self) -> list[str]:
        """The records that no question has asked for since the programs began, in their order."""
        return list(self._unasked)

    def __contains__(self, name: str) -> bool:
        return name in self._values or name in self._written or name in self._stored

    def is_carried(self, name: str) -> bool:
        """Whether a record was made in an iteration before."""
        return name in self._carried

    def find(self, name: str, digest: bytes, read: Callable[[bytes], Value]) -> Value | None:
        """What was recorded for a question, or None; `read` makes it of the payload in the file."""
        if name in self._values:
            known, value, _ = self._values[name]
            if known != digest:
                return None
        else:
            if name in self._written:
                self._read()
            record = self._stored.get(name)
            if record is None or not record.startswith(digest):
                return None
            value = read(record[len(digest) :])
        self._unasked.pop(name, None)
        return value  # type: ignore[no-any-return]

    def keep(self, name: str, digest: bytes, value: Value, write: Callable[[Value], bytes]) -> None:
        """Record what a question got; `write` makes its payload in the file."""
        payload = write(value)
        if name in self._unasked and name in self:
            before = self._latest(name)
            if isinstance(before, bytes) and before[DIGEST_BYTES:] == payload:
                self._unasked.pop(name)  # the same record for a question that is only written otherwise
            else:
                self._replaced.append((name, before))
        if name == CARRIED:
            self._carried = frozenset(self._names())
        if self._file is not None:
            self._file.append(name.encode(), digest + payload)
            self._written.add(name)
        # A program may ask for an effect twice.
        if self._file is None or write is write_value:
            self._values[name] = digest, value, write

    def _latest(self, name: str) -> Any:
        """The value of a record, or its digest and payload."""
        if name in self._written:
            self._read()
        return self._values[name][1] if name in self._values else self._stored[name]

    def carry(self, groups: Collection[str], later: Journal) -> None:
        """Have another journal hold the records of some groups too; here nobody is to ask for them any more."""
        for name in self._names():
            if group_of(name) not in groups:
                continue
            self._unasked.pop(name, None)
            with later._beginning:
                if name in later:
                    continue
                if name in self._values:
                    asked, value, write = self._values[name]
                    later.keep(name, asked, value, write)
                else:
                    later.put(name, self._stored[name])
                later._unasked[name] = None

    def put(self, name: str, record: bytes) -> None:
        """Keep a record as another file has it, digest and payload."""
        if self._file is None:
            self._stored[name] = record
        else:
            self._file.append(name.encode(), record)
            self._written.add(name)

    def segments(self, groups: Collection[str]) -> Iterator[Segment]:
        """What was sampled for some groups."""
        for name in self._names():
            if "/segment" in name and group_of(name) in groups:
                each = self._latest(name)
                yield read_segment(each[DIGEST_BYTES:]) if isinstance(each, bytes) else each

    def unused_segments(self) -> dict[str, list[tuple[str, Segment]]]:
        """What was sampled and never asked for again, by the group of the selection; each with its name, in order."""
        if not (self._unasked or self._replaced):
            return {}
        self._names()
        replaced = {name for name, _ in self._replaced}
        left: dict[str, list[tuple[str, Segment]]] = {}
        for name, each in [
            (name, self._latest(name)) for name in self._unasked if name not in replaced
        ] + self._replaced:
            if "/segment" in name:
                segment = read_segment(each[DIGEST_BYTES:]) if isinstance(each, bytes) else each
                left.setdefault(group_of(name), []).append((name, segment))
        return {
            group: sorted(segments, key=lambda named: (named[0], named[1].tokens.tolist()))
            for group, segments in left.items()
        }


def group_of(name: str) -> str:
    """The group of a record by its key, iteration and place; what came of a group has a longer key."""
    return ".".join(name.partition("/")[0].split(".")[:2])


def digest(*parts: bytes | str) -> bytes:
    """16 bytes that tell questions apart."""
    return _core.keys.hash_parts(*parts)


def question(request: Request, engine: str) -> bytes:
    """The digest of a request to an engine."""
    # Each request has the whole context so far: what long episodes ask has to be read at the speed of memory.
    tokens = np.ascontiguousarray(request.tokens, np.int32)
    images = [image.sha256 for image in request.images]
    return _core.keys.hash_parts(tokens, _sampling_text(request.sampling), engine, *images)


_sampling_text: Callable[[Sampling], str] = lru_cache(maxsize=64)(repr)
"""Sampling as part of a digest."""


def keep_unused_segments(forest: Forest, group: int, segments: Sequence[tuple[str, Segment]], engines: int) -> None:
    """Keep recorded segments as trajectories of a group: helpers that were aborted, one for each.

    A record names the question and has its digest, and the context is that of a program which nobody runs any more:
    so they stand without it, and their `info` has the name. A segment that was aborted before its first token, and
    whatever was recorded for a group that this iteration does not have, is told alone.

    Args:
        forest: has the group.
        group: its number.
        segments: by their names in the journal (group, branch, number of the segment).
        engines: how many there are; an agent behind them is spoken for by the first.
    """
    for place, (name, segment) in enumerate(segments):
        if not len(segment.tokens):
            continue
        agent = int(name.split("/")[1].split(".")[0])
        handle = forest.start(group, _FIRST_MEMBER + place, agent=agent, role="helper")
        forest.append(
            handle,
            segment.tokens,
            kind="action",
            logprobs=segment.logprobs,
            entropies=segment.entropies,
            policy=agent if agent < engines else 0,
            policy_version=segment.policy_version,
            seed=segment.seed,
            finish_reason=segment.finish_reason,
        )
        forest.step(handle)
        forest.finish(handle, status="aborted", info={"aborted": f"recorded as {name}, and not asked for again"})
