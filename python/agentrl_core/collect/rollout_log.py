"""The rollout log of an iteration: results are written before programs get them, so a resumed run gets the same."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from agentrl_core import _core
from agentrl_core._util.json_text import to_json
from agentrl_core.data.forest import Forest
from agentrl_core.data.store import RolloutLog, Store
from agentrl_core.engine.base import Segment, TopLogprobs
from agentrl_core.env.base import Context, StepResult
from agentrl_core.env.image import Image
from agentrl_core.env.step_record import JointStep, StepRecord
from agentrl_core.exceptions import InvalidInputError

_FIRST_MEMBER = 1 << 20
"""First member number after those of a program."""

CARRIED = "carried"
"""The record after everything carried into an iteration, with a list of it."""
DIGEST_BYTES = 16
"""Length of the digest before each payload."""

_SEGMENT = struct.Struct("<BqQII?")
_CACHED = struct.Struct("<I")
_UNKNOWN = (1 << 32) - 1
_EXPERTS = struct.Struct("<BII")
_FINISHES = ("stop", "length", "abort")
Begin = tuple[Any, bytes | str, Any, Sequence[Context]]
"""Start of an episode: observation, state, tools, and the contexts of its conversations."""
Value = TypeVar("Value")
digest = _core.keys.hash_parts
"""Return the digest of 16 bytes of a request's parts."""


class IterationLogs:
    """The rollout logs of running iterations; an iteration carries groups over to the log of the next one.

    Args:
        store: store of the rollout logs; None: in memory.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._logs: dict[int, IterationLog] = {}
        self._lock = threading.Lock()

    def of(self, iteration: int) -> IterationLog:
        """Return the rollout log of an iteration, which is read from the store on first use."""
        with self._lock:
            if iteration not in self._logs:
                log = None if self._store is None else self._store.rollout_log(iteration)
                self._logs[iteration] = IterationLog(log)
            return self._logs[iteration]

    def drop(self, last: int) -> None:
        """Drop the rollout logs of a committed iteration and of all before it."""
        with self._lock:
            self._logs = {number: each for number, each in self._logs.items() if number > last}


class IterationLog:
    """The rollout log of one iteration: results of requests by name, which a resumed run reuses.

    A record is reused only if the digest of the request is the same: a changed program, recipe or engine gets new
    results from the first difference on.

    Args:
        file: the rollout log's file; None: in memory.
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
        """Read the records of the file into memory."""
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
        """Mark all records as not requested, since the programs start from the beginning."""
        with self._beginning:
            self._unused = self._names()

    @property
    def unused(self) -> list[str]:
        """Return the names of records that were not requested since the programs started, in order."""
        return list(self._unused)

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
        self._unused.pop(name, None)
        return value  # type: ignore[no-any-return]

    def keep(self, name: str, digest: bytes, value: Value, write: Callable[[Value], bytes]) -> None:
        """Record the result of a request; `write` encodes it for the file."""
        payload = write(value)
        if name in self._unused and name in self:
            before = self._latest(name)
            if isinstance(before, bytes) and before[DIGEST_BYTES:] == payload:
                self._unused.pop(name)  # the same record for an equivalent request
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

    def carry(self, groups: Collection[str], later: IterationLog) -> None:
        """Copy the records of some groups to another rollout log; here they no longer count as unused."""
        for name in self._names():
            if group_of(name) not in groups:
                continue
            self._unused.pop(name, None)
            with later._beginning:
                if name in later:
                    continue
                if name in self._values:
                    key, value, write = self._values[name]
                    later.keep(name, key, value, write)
                else:
                    later.put(name, self._stored[name])
                later._unused[name] = None

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
        if not (self._unused or self._replaced):
            return {}
        self._names()
        replaced = {name for name, _ in self._replaced}
        left: dict[str, list[tuple[str, Segment]]] = {}
        for name, each in [
            (name, self._latest(name)) for name in self._unused if name not in replaced
        ] + self._replaced:
            if "/segment" in name:
                segment = read_segment(each[DIGEST_BYTES:]) if isinstance(each, bytes) else each
                left.setdefault(group_of(name), []).append((name, segment))
        return {
            group: sorted(segments, key=lambda named: (named[0], named[1].tokens.tolist()))
            for group, segments in left.items()
        }


def group_of(name: str) -> str:
    """Return the key of a record's group; for a derived group, the key of the selected group that it derives from."""
    return ".".join(name.partition("/")[0].split(".")[:2])


def keep_unused_segments(forest: Forest, group: int, segments: Sequence[tuple[str, Segment]], engines: int) -> None:
    """Store unused recorded segments as aborted helper trajectories of a group, one each.

    A record has only the name and digest of its request, so the context is lost, and `info` has the name. Segments
    without a token, and those of groups that this iteration does not have, are only reported.

    Args:
        forest: forest of the group.
        group: its number.
        segments: segments by name in the log (group, branch, number of the segment).
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


def write_segment(segment: Segment) -> bytes:
    """Encode a segment as bytes."""
    count, top = len(segment.tokens), segment.top
    likely = 0 if top is None else top.tokens.shape[1]
    header = _SEGMENT.pack(
        _FINISHES.index(segment.finish_reason),
        segment.policy_version,
        segment.seed,
        count,
        likely,
        segment.entropies is not None,
    )
    arrays = [np.ascontiguousarray(segment.tokens, np.int32), np.ascontiguousarray(segment.logprobs, np.float32)]
    if segment.entropies is not None:
        arrays.append(np.ascontiguousarray(segment.entropies, np.float32))
    if top is not None:
        arrays += [np.ascontiguousarray(top.tokens, np.int32), np.ascontiguousarray(top.logprobs, np.float32)]
    experts, cached = segment.routed_experts, segment.cached_tokens
    parts: list[Any] = [header, *[array.data for array in arrays]]
    if cached is not None or experts is not None:
        parts.append(_CACHED.pack(_UNKNOWN if cached is None else cached))
    if experts is not None:
        parts += [_EXPERTS.pack(experts.itemsize, *experts.shape), experts.tobytes()]
    return b"".join(parts)


def read_segment(payload: bytes) -> Segment:
    """Decode a segment of `write_segment`."""
    finish, version, seed, count, likely, has_entropies = _SEGMENT.unpack_from(payload)
    offset = _SEGMENT.size

    def take(kind: Any, number: int) -> Any:
        nonlocal offset
        array = np.frombuffer(payload, kind, number, offset).copy()
        offset += array.nbytes
        return array

    tokens, logprobs = take(np.int32, count), take(np.float32, count)
    entropies = take(np.float32, count) if has_entropies else None
    top = None
    if likely:
        shape = (count, likely)
        top = TopLogprobs(
            take(np.int32, count * likely).reshape(shape), take(np.float32, count * likely).reshape(shape)
        )
    # Last, since earlier versions did not write them.
    cached, experts = None, None
    if offset < len(payload):
        number = int(_CACHED.unpack_from(payload, offset)[0])
        cached = None if number == _UNKNOWN else number
        offset += _CACHED.size
    if offset < len(payload):
        size, rows, width = _EXPERTS.unpack_from(payload, offset)
        offset += _EXPERTS.size
        experts = take(np.uint8 if size == 1 else np.uint16, rows * width).reshape(rows, width)
    reason: Any = _FINISHES[finish]
    return Segment(tokens, logprobs, entropies, reason, version, seed, top, cached, experts)


def write_answer(answer: StepRecord | JointStep) -> bytes:
    """Encode the result of an environment's step as bytes, for one agent or for several (`JointStep`).

    Its values are bytes, images and exact floats, for which `component.state.pack_state`, with its arrays, has no form.
    """
    if isinstance(answer, JointStep):
        of = {agent: _table(each) for agent, each in answer.of.items()}
        joint = {"of": of, "turn_of": list(answer.turn_of), "state_key": _tagged(answer.state_key)}
        return _json({"joint": joint}, "StepResult")
    return _json(_table(answer), "StepResult")


def read_answer(payload: bytes) -> StepRecord | JointStep:
    """Decode an answer of `write_answer`."""
    table = json.loads(payload)
    joint = table.pop("joint", None)
    if joint is None:
        return _answer(table)
    of = {agent: _answer(each) for agent, each in joint["of"].items()}
    return JointStep(of, tuple(joint["turn_of"]), _untagged(joint["state_key"]))


def _table(answer: StepRecord) -> dict[str, Any]:
    """Return an answer as JSON, without fields at their default."""
    outcome = answer.outcome
    table: dict[str, Any] = {}
    if outcome.observation is not None:
        table["observation"] = _shown(outcome.observation)
    if outcome.reward is not None:
        table["reward"] = repr(float(outcome.reward))
    for name in ("success", "info"):
        value = getattr(outcome, name)
        if value is not None:
            table[name] = value
    if outcome.context is not None:
        table["context"] = _placed(outcome.context)
    for name in ("terminated", "truncated", "flags"):
        if value := getattr(outcome, name):
            table[name] = value
    if outcome.facts:
        table["facts"] = {name: _tagged(value) for name, value in outcome.facts.items()}
    if outcome.parallel_requests:
        table["besides"] = [_placed(context) for context in outcome.parallel_requests]
    table["state_key"] = _tagged(answer.state_key)
    return table


def _answer(table: dict[str, Any]) -> StepRecord:
    state = _untagged(table.pop("state_key"))
    reward = table.pop("reward", None)
    facts = {name: _untagged(value) for name, value in (table.pop("facts", None) or {}).items()}
    table["observation"] = _seen(table.get("observation"))
    context = table.pop("context", None)
    table["context"] = None if context is None else _place(context)
    table["parallel_requests"] = tuple(map(_place, table.pop("besides", ())))
    outcome = StepResult(reward=None if reward is None else float(reward), facts=facts or None, **table)
    return StepRecord(outcome, state)


def plain_value(value: Any, name: str) -> Any:
    """Return the result of a side effect in the form that a new process reads from the rollout log.

    Raises:
        InvalidInputError: it does not consist of plain JSON values.
    """
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{name} returned the value {value!r:.60}, which cannot be stored ({error}); return numbers, texts, lists "
            "and dicts of them"
        ) from None


def write_value(value: Any) -> bytes:
    """Encode the result of a side effect as bytes."""
    return json.dumps(value).encode()


def read_value(payload: bytes) -> Any:
    """Decode a value of `write_value`."""
    return json.loads(payload)


def write_begin(begin: Begin) -> bytes:
    """Encode the start of an episode as bytes."""
    observation, state_key, tools, contexts = begin
    table: dict[str, Any] = {"state_key": _tagged(state_key), "tools": tools}
    if contexts:
        table["contexts"] = [_placed(context) for context in contexts]
    if isinstance(observation, JointStep):
        of = {agent: _shown(content) for agent, content in observation.of.items()}
        table |= {"observation": of, "turn_of": list(observation.turn_of)}
    else:
        table["observation"] = _shown(observation)
    return _json(table, "Episode.observation")


def _json(table: Mapping[str, Any], name: str) -> bytes:
    try:
        return json.dumps(table).encode()
    except TypeError:  # numbers of NumPy and torch, or values without a JSON form
        return to_json(table, name).encode()


def read_begin(payload: bytes) -> Begin:
    """Decode the start of an episode from `write_begin`."""
    table: Mapping[str, Any] = json.loads(payload)
    observation = table["observation"]
    if "turn_of" in table:
        of = {agent: _seen(content) for agent, content in observation.items()}
        observation = JointStep(of, tuple(table["turn_of"]))
    else:
        observation = _seen(observation)
    return observation, _untagged(table["state_key"]), table["tools"], tuple(map(_place, table.get("contexts", ())))


_KEYS = {"conversation": "lane", "replaces_history": "whole"}
"""Keys of a rollout log for fields of `Context`."""
_NAMES = {key: name for name, key in _KEYS.items()}


def _placed(context: Context) -> dict[str, Any]:
    """Return the context of an observation as JSON."""
    fields = vars(context).items()
    table = {_KEYS.get(name, name): value for name, value in fields if value is not None and value != b""}
    return table | {"observation": _shown(context.observation), "state_key": _tagged(context.state_key)}


def _place(table: dict[str, Any]) -> Context:
    """Read a context of `_placed`."""
    observation, state_key = _seen(table.pop("observation", None)), _untagged(table.pop("state_key", {"hex": ""}))
    named = {_NAMES.get(name, name): value for name, value in table.items()}
    return Context(**named, observation=observation, state_key=state_key)


def _shown(content: Any) -> Any:
    """Return a content as JSON, with images in base64."""
    if content is None or isinstance(content, str):
        return content
    return [
        {**message, "content": [_part(part) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in content
    ]


def _part(part: str | Image) -> Any:
    return {"base64": base64.b64encode(part.content).decode()} if isinstance(part, Image) else part


def _seen(content: Any) -> Any:
    """Read a content of `_shown`."""
    for message in content if isinstance(content, list) else ():
        if isinstance(message.get("content"), list):
            message["content"] = [
                Image(base64.b64decode(part["base64"])) if isinstance(part, dict) else part
                for part in message["content"]
            ]
    return content


def _tagged(value: Any) -> Any:
    """Encode bytes and special numbers for JSON with a tag."""
    if isinstance(value, (bytes, bytearray)):
        return {"hex": bytes(value).hex()}
    if isinstance(value, float):
        return {"float": repr(value)}
    return value


def _untagged(value: Any) -> Any:
    if isinstance(value, dict):
        kind: Callable[[str], Any] = bytes.fromhex if "hex" in value else float
        return kind(next(iter(value.values())))
    return value
