"""Sessions of Claude Code: a line for each part of a message, linked by `parentUuid`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.trajectories.readers.files import FileRecord, refuse
from agentrl_core.integrations.trajectories.readers.messages import (
    HiddenReasoning,
    Message,
    call_of,
    finished,
    hidden,
    mask,
    result_of,
    text_of,
)

_MESSAGE_TYPES = ("user", "assistant")
_MARKS = ("sessionId", "parentUuid", "isSidechain")
_CUT = ("max_tokens", "model_context_window_exceeded", "pause_turn")
_INTERRUPTED = "[Request interrupted by user]"
_SYNTHETIC = "<synthetic>"
_ABSENT = "the system prompt and the tools, which the log does not hold"


def recognised(value: object) -> bool:
    """Return whether a line is a message of a session."""
    return (
        isinstance(value, Mapping)
        and value.get("type") in _MESSAGE_TYPES
        and isinstance(value.get("message"), Mapping)
        and any(name in value for name in _MARKS)
    )


@dataclass
class _Line:
    where: str
    number: int
    entry: Mapping[str, Any]
    parent: str | None
    children: list[str] = field(default_factory=list)


class _Session:
    """The lines of a file, and the answers that are trained already."""

    def __init__(self, records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> None:
        self.hidden_reasoning: HiddenReasoning = hidden_reasoning
        self.lines: dict[str, _Line] = {}
        self.left_out: Counter[str] = Counter()
        self.answers: dict[tuple[object, object], list[_Line]] = {}
        self.results: dict[str, Message] = {}
        self.trained: set[tuple[object, object]] = set()
        last: str | None = None
        for number, record in enumerate(records):
            entry = record.mapping()
            if entry.get("isApiErrorMessage"):
                self.left_out["error of the server"] += 1
            identity = str(entry.get("uuid") or f"line {number}")
            if "uuid" not in entry and not (entry.get("type") in _MESSAGE_TYPES and "message" in entry):
                self.left_out[f"entry of type {entry.get('type')!r}"] += 1
                continue
            if identity in self.lines:  # a resumed session begins with a copy of the previous one
                continue
            parent = entry.get("parentUuid", last)
            line = self.lines[identity] = _Line(record.where, number, entry, parent)
            last = identity
            if parent is not None and parent not in self.lines:
                raise InvalidInputError(
                    f"{record.where}: parentUuid is {parent!r}, but no earlier line has this uuid; give the whole file "
                    "with the lines in their original order"
                )
            if parent is not None:
                self.lines[parent].children.append(identity)
            if _is_message(line):
                self._register(line)

    def _register(self, line: _Line) -> None:
        message = line.entry["message"]
        if line.entry["type"] == "assistant":
            self.answers.setdefault(_answer_key(line), []).append(line)
            return
        for place, block in enumerate(_blocks(message, line.where)):
            if block.get("type") == "tool_result":
                if not block.get("tool_use_id"):
                    raise InvalidInputError(
                        f"{line.where}: content[{place}] is a tool_result without tool_use_id; give the id of the tool "
                        "call with this result"
                    )
                content = text_of(block.get("content"), line.where)
                result = result_of(block["tool_use_id"], content)
                if block.get("is_error"):
                    result["is_error"] = True
                self.results[block["tool_use_id"]] = result

    def paths(self) -> list[list[_Line]]:
        """Return the lines from a root to each leaf."""
        paths = []
        for identity, line in self.lines.items():
            if line.children:
                continue
            path, node = [], identity
            while True:
                path.append(self.lines[node])
                parent = self.lines[node].parent
                if parent is None:
                    break
                node = parent
            paths.append(path[::-1])
        return paths

    def chat(self, path: Sequence[_Line]) -> tuple[list[Message], list[str], list[tuple[object, object]]]:
        """Return the messages of a path, reasons why answers are not trained, and the keys of its answers."""
        messages: list[Message] = []
        reasons: list[str] = []
        keys: list[tuple[object, object]] = []
        replied: set[object] = set()
        for line in path:
            if not _is_message(line):
                continue
            if line.entry["type"] == "assistant":
                key = _answer_key(line)
                if key in keys:
                    continue
                keys.append(key)
                answer = self._answer(self.answers[key], reasons)
                if key in self.trained:
                    answer["weight"] = 0
                messages.append(answer)
                for call in answer.get("tool_calls", ()):
                    if call["id"] in self.results:
                        messages.append(self.results[call["id"]])
                        replied.add(call["id"])
                continue
            blocks = _blocks(line.entry["message"], line.where)
            for block in blocks:
                if block.get("type") == "tool_result" and block["tool_use_id"] not in replied:
                    refuse(
                        line.where,
                        f"it replies to the call {block['tool_use_id']!r}, which no earlier line has",
                        "give the whole file",
                    )
            others = [block for block in blocks if block.get("type") != "tool_result"]
            if others:
                text = text_of(others, line.where)
                if text == _INTERRUPTED and messages and messages[-1]["role"] == "assistant":
                    mask(messages[-1], reasons, f"{line.where}: the user interrupted the answer before it")
                messages.append({"role": "user", "content": text})
        return messages, reasons, keys

    def _answer(self, lines: Sequence[_Line], reasons: list[str]) -> Message:
        where, first = lines[0].where, lines[0].entry["message"]
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[Message] = []
        is_hidden = False
        for line in lines:
            for block in _blocks(line.entry["message"], line.where):
                kind = block.get("type")
                if kind == "thinking" and block.get("thinking"):
                    thoughts.append(block["thinking"])
                elif kind in ("thinking", "redacted_thinking"):
                    is_hidden = True
                elif kind == "tool_use":
                    calls.append(call_of(block.get("id"), block.get("name"), block.get("input"), line.where))
                elif kind == "text" and calls and block.get("text"):
                    refuse(line.where, "it has text after a call, which a chat cannot hold", "leave the session out")
                else:
                    texts.append(text_of([block], line.where))
        answer: Message = {"role": "assistant", "content": "\n".join(texts)}
        if thoughts:
            answer["reasoning_content"] = "\n".join(thoughts)
        if calls:
            answer["tool_calls"] = calls
        if first.get("model") == _SYNTHETIC:
            mask(answer, reasons, f"{where}: the program wrote it, not the model")
        elif any(line.entry["message"].get("stop_reason") in _CUT for line in lines):
            mask(answer, reasons, f"{where}: it was cut by a limit, so that its end was not sampled")
        elif is_hidden:
            hidden(answer, reasons, where, self.hidden_reasoning, "its reasoning is encrypted or left out")
        return answer


def chats(records: Iterator[FileRecord], hidden_reasoning: HiddenReasoning) -> Iterator[Message]:
    """Yield a chat for each conversation of a session: also of sub-agents, after a compaction, and after edits.

    An answer that several conversations share is trained in the first one.
    """
    session = _Session(records, hidden_reasoning)
    conversations = []
    for path in session.paths():
        messages, reasons, keys = session.chat(path)
        if messages:
            conversations.append((path, messages, reasons, keys))
    # Parallel calls fork the lines, so a prefix of a longer conversation is not a separate conversation.
    plain = [[_bare(message) for message in messages] for _, messages, _, _ in conversations]
    for place, (path, _, _, keys) in enumerate(conversations):
        bare_messages = plain[place]
        if any(
            other[: len(bare_messages)] == bare_messages and (len(other) > len(bare_messages) or later < place)
            for later, other in enumerate(plain)
            if later != place
        ):
            continue
        messages, reasons, _ = session.chat(path)
        session.trained.update(keys)
        entry = next(line.entry for line in path if _is_message(line))
        left_out = [_ABSENT, *(f"{count} of: {kind}" for kind, count in sorted(session.left_out.items()))]
        left_out += _others(path)
        chat = {
            "messages": messages,
            "task": entry.get("sessionId"),
            "session_id": entry.get("sessionId"),
            "sidechain": True if entry.get("isSidechain") else None,
            "left_out": left_out,
        }
        yield finished(chat, reasons, path[0].where)


def _others(path: Sequence[_Line]) -> list[str]:
    counts = Counter(str(line.entry.get("type")) for line in path if not _is_message(line))
    return [f"{count} of: entry of type {kind!r}" for kind, count in sorted(counts.items())]


def _is_message(line: _Line) -> bool:
    return (
        line.entry.get("type") in _MESSAGE_TYPES
        and isinstance(line.entry.get("message"), Mapping)
        and not line.entry.get("isApiErrorMessage")
    )


def _answer_key(line: _Line) -> tuple[object, object]:
    """Return a key that the lines of one answer share."""
    identity = line.entry["message"].get("id") or line.entry.get("requestId") or line.number
    return bool(line.entry.get("isSidechain")), identity


def _blocks(message: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise InvalidInputError(f"{where}: content is {content!r:.60}; give a text or a list of blocks")
    for place, block in enumerate(content):
        if not isinstance(block, Mapping):
            raise InvalidInputError(f"{where}: content[{place}] is {block!r:.60}; give a block, an object with a type")
    return content


def _bare(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "weight"}
