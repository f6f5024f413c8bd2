"""The journal of live groups: results are written before programs see them, so that interrupted programs can rerun."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from agentrl_core import _core
from agentrl_core.collect.journal_codec import read_segment, write_value
from agentrl_core.data.forest import Forest
from agentrl_core.data.store import RolloutLog, Store
from agentrl_core.engine.base import Request, Sampling, Segment

_FIRST_MEMBER = 1 << 20
"""First member number after those of a program."""

CARRIED = "carried"
"""The record after everything carried into an iteration, with a list of it."""
DIGEST_BYTES = 16
"""Length of the digest before each payload."""

Value = TypeVar("Value")
digest = _core.keys.hash_parts
"""Return the digest of 16 bytes of a request's parts."""


class Journals:
    """The journals of the iterations that run: an iteration carries groups into the journal of the next one.

    Args:
        store: store of the journals; None: in memory.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._journals: dict[int, Journal] = {}
        self._lock = threading.Lock()

    def of(self, iteration: int) -> Journal:
        """Return the journal of an iteration, which is read from the store on first use."""
        with self._lock:
            if iteration not in self._journals:
                log = None if self._store is None else self._store.rollout_log(iteration)
                self._journals[iteration] = Journal(log)
            return self._journals[iteration]

    def drop(self, last: int) -> None:
        """Drop the journals of a committed iteration and of all before it."""
        with self._lock:
            self._journals = {number: each for number, each in self._journals.items() if number > last}


class Journal:
    """The records of an iteration by name.

    A record is reused only if the digest of the request is the same: a changed program, recipe or engine gets new
    results from the first difference on.

    Args:
        file: the journal's file; None: in memory.
    """

    def __init__(self, file: RolloutLog | None = None) -> None:
        self._file = file
        self._values: dict[str, tuple[bytes, Any, Callable[[Any], bytes]]] = {}
        """Values recorded since the start, with the digest of the request and an encoder."""
        self._written: set[str] = set()
        """Records written to the file since it was read. Segments are not kept here, but read again."""
        self._stored: dict[str, bytes] = {}
        """Records of the file when it was read: digest and payload."""
        self._replaced: list[tuple[str, Any]] = []
        """Replaced records, as values or as digest and payload."""
        self._carried: frozenset[str] = frozenset()
        # The previous iteration carries records from its thread, which this one reads in another.
        self._beginning = threading.Lock()
        self._read()
        self.begin()

    def _read(self) -> None:
        """Read the file."""
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
        """Return the names of all records in order."""
        if self._written:
            self._read()
        return dict.fromkeys((*self._stored, *self._values))

    def __len__(self) -> int:
        return len(self._names())

    def begin(self) -> None:
        """Start the programs from the beginning."""
        with self._beginning:
            self._unasked = self._names()

    @property
    def unasked(self) -> list[str]:
        """Return records that were not requested since the programs started, in order."""
        return list(self._unasked)

    def __contains__(self, name: str) -> bool:
        return name in self._values or name in self._written or name in self._stored

    def is_carried(self, name: str) -> bool:
        """Return whether a record is from an earlier iteration."""
        return name in self._carried

    def find(self, name: str, digest: bytes, read: Callable[[bytes], Value]) -> Value | None:
        """Return the record of a request, or None; `read` decodes a payload of the file."""
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
        """Record the result of a request; `write` encodes it for the file."""
        payload = write(value)
        if name in self._unasked and name in self:
            before = self._latest(name)
            if isinstance(before, bytes) and before[DIGEST_BYTES:] == payload:
                self._unasked.pop(name)  # the same record for an equivalent request
            else:
                self._replaced.append((name, before))
        if name == CARRIED:
            self._carried = frozenset(self._names())
        if self._file is not None:
            self._file.append(name.encode(), digest + payload)
            self._written.add(name)
        # A program may request a side effect twice.
        if self._file is None or write is write_value:
            self._values[name] = digest, value, write

    def _latest(self, name: str) -> Any:
        """Return the value of a record, or its digest and payload."""
        if name in self._written:
            self._read()
        return self._values[name][1] if name in self._values else self._stored[name]

    def carry(self, groups: Collection[str], later: Journal) -> None:
        """Copy the records of some groups to another journal; they are no longer requested here."""
        for name in self._names():
            if group_of(name) not in groups:
                continue
            self._unasked.pop(name, None)
            with later._beginning:
                if name in later:
                    continue
                if name in self._values:
                    key, value, write = self._values[name]
                    later.keep(name, key, value, write)
                else:
                    later.put(name, self._stored[name])
                later._unasked[name] = None

    def put(self, name: str, record: bytes) -> None:
        """Store a record of another file, as digest and payload."""
        if self._file is None:
            self._stored[name] = record
        else:
            self._file.append(name.encode(), record)
            self._written.add(name)

    def segments(self, groups: Collection[str]) -> Iterator[Segment]:
        """Return the segments of some groups."""
        for name in self._names():
            if "/segment" in name and group_of(name) in groups:
                each = self._latest(name)
                yield read_segment(each[DIGEST_BYTES:]) if isinstance(each, bytes) else each

    def unused_segments(self) -> dict[str, list[tuple[str, Segment]]]:
        """Return segments that were not requested again, by group of the selection, with names and in order."""
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
    """Return the group key of a record, iteration and place; derived groups have longer keys."""
    return ".".join(name.partition("/")[0].split(".")[:2])


def question(request: Request, engine: str) -> bytes:
    """Return the digest of a request to an engine."""
    # Each request has the whole context so far, so hashing must run at memory speed.
    tokens = np.ascontiguousarray(request.tokens, np.int32)
    images = [image.sha256 for image in request.images]
    return digest(tokens, _sampling_text(request.sampling), engine, *images)


_sampling_text: Callable[[Sampling], str] = lru_cache(maxsize=64)(repr)
"""Return the sampling as part of a digest."""


def keep_unused_segments(forest: Forest, group: int, segments: Sequence[tuple[str, Segment]], engines: int) -> None:
    """Store unused recorded segments as aborted helper trajectories of a group, one each.

    A record has only the name and digest of its request, so the context is lost, and `info` has the name. Segments
    without a token, and those of groups that this iteration does not have, are only reported.

    Args:
        forest: forest of the group.
        group: its number.
        segments: segments by journal name (group, branch, number of the segment).
        engines: number of engines; agents beyond them use the first.
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
