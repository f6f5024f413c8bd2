"""Recorded sessions: their turns, their records in a rollout log, and the rules of the fields."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentrl_core._util.json_text import to_json
from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.request_fields import FLOAT32, Flag, Number, Object, Rule, Text, check_depth, check_portable
from agentrl_core.exceptions import InvalidInputError

Tokens = NDArray[np.int32]

TASK = Text(least=1, most=4096)
"""Rule of the name of a task or a group."""

REWARD = Number(-FLOAT32, FLOAT32)
"""Rule of a reward: a finite number of 32 bits."""

END: dict[str, Rule] = {
    "reward": REWARD,
    "success": Flag(),
    "status": Text(among=("finished", "truncated", "aborted", "failed")),
    "info": Object(),
}
"""Rules of the fields that close a session."""

INFO_DEPTH = 64
"""Deepest nesting of `info`."""

INFO_BYTES = 256 << 10
"""Most bytes of `info` as JSON; a batch stores it once for each conversation."""


@dataclass
class SessionTurn:
    """One answer of a session. Its prompt is stored as the length of a prefix shared with another turn, and the rest.

    Args:
        number: number of the turn in its session.
        origin: the turn whose prompt and output have a prefix in common with this prompt; -1: none.
        shared: number of tokens of that prefix.
        added: the tokens of the prompt after the prefix.
        output: the sampled tokens.
        logprobs: log-probs of the sampled tokens; NaN if the engine reported none.
        finish_reason: why the answer ended.
        version: version of the weights.
        temperature: sampling temperature; None if the client did not set it.
        top_p: sampling top-p.
        message: the message that was sent to the client.
        chat: digest of the chat that ends with this answer, see `history_digest.digests`; empty: not a chat.
        asked: digest of the request, to recognise repeated requests.
        lane: number of the conversation, see `conversations.SessionConversations`.
        opening: digest of the first message if the turn begins a conversation, otherwise empty.
        details: `logprobs` in the client's format, if it requested them.
        reward: reward of this turn, if it has one.
        shared_images: number of images that the prompt has in common with the turn `origin`, from the first on.
        images: the further images of the prompt, by their SHA-256 as hex text.
    """

    number: int
    origin: int
    shared: int
    added: Tokens
    output: Tokens
    logprobs: NDArray[np.float32]
    finish_reason: str
    version: int
    temperature: float | None
    top_p: float
    message: Json
    chat: str
    asked: str
    lane: int = 0
    opening: str = ""
    details: Json | None = None
    reward: float | None = None
    shared_images: int = 0
    images: Sequence[str] = ()


@dataclass
class SessionRecord:
    """A recorded session: its names, its turns, its images and its outcome."""

    session: str
    task: str
    group: str
    member: int
    turns: list[SessionTurn] = field(default_factory=list)
    closed: Json | None = None
    """Outcome of a closed session: reward, success, status, info; None while it is open."""
    pictures: dict[str, bytes] = field(default_factory=dict)
    """The bytes of the session's images, by their SHA-256 as hex text."""

    def check_open(self) -> None:
        """Raise an error if the session is closed."""
        if self.closed is not None:
            raise InvalidInputError(f"session {self.session!r} is closed; open another one")

    _last: tuple[int, Tokens] = field(default=(-1, np.empty(0, np.int32)), repr=False)
    """The last requested path; the next request is usually for the following turn."""

    def path(self, number: int) -> Tokens:
        """Return the tokens of a turn: its prompt, then the sampled tokens."""
        known, path = self._last
        if known != number:
            turn = self.turns[number]
            before = path[: turn.shared] if known == turn.origin else None
            context = self.context(number) if before is None else np.concatenate([before, turn.added])
            path = np.concatenate([context, turn.output])
            self._last = number, path
        return path

    def context(self, number: int) -> Tokens:
        """Return the tokens of a turn's prompt, as the engine read them."""
        turn = self.turns[number]
        parts, length = [turn.added], turn.shared
        while turn.origin >= 0:
            turn = self.turns[turn.origin]
            for part, start in ((turn.output, turn.shared + len(turn.added)), (turn.added, turn.shared)):
                if length > start:
                    parts.append(part[: length - start])
                    length = start
            length = min(length, turn.shared)
        return np.concatenate(parts[::-1])

    def images(self, number: int) -> list[str]:
        """Return the images in a turn's prompt, in order, by their SHA-256 as hex text."""
        turn = self.turns[number]
        parts, count = [turn.images], turn.shared_images
        while count:
            turn = self.turns[turn.origin]
            parts.append(turn.images[: max(count - turn.shared_images, 0)])
            count = min(count, turn.shared_images)
        return [image for part in parts[::-1] for image in part]


def check_name(value: object, name: str) -> None:
    """Refuse an invalid name of a task or a group.

    Raises:
        InvalidInputError: the name is invalid; the message has the argument's name.
    """
    TASK(value, name)
    check_portable(value, name)


def checked_end(end: Json) -> Json:
    """Return the checked outcome of a session in the plain types that a rollout log restores.

    Args:
        end: `reward`, `success`, `status` and `info`; None: unknown.

    Raises:
        InvalidInputError: a field is invalid; the message has its name.
    """
    for name, value in end.items():
        if value is not None:
            END[name](value, name)
    checked = dict(end)
    if end["reward"] is not None:
        checked["reward"] = float(end["reward"])
    if end["success"] is not None:
        checked["success"] = bool(end["success"])
    if end["info"] is not None:
        text = to_json(end["info"], "info")
        if len(text) > INFO_BYTES:
            raise InvalidInputError(f"info has {len(text)} bytes as JSON; give at most {INFO_BYTES}")
        checked["info"] = json.loads(text)
        check_depth(checked["info"], "info", INFO_DEPTH)
        check_portable(checked["info"], "info")
    return checked


def records_of(recorded: SessionRecord) -> list[tuple[str, Json]]:
    """Return a session as the records of a rollout log."""
    opened = {"task": recorded.task, "group": recorded.group, "member": recorded.member}
    records: list[tuple[str, Json]] = [(f"{recorded.session} open", opened)]
    known: set[str] = set()
    for turn in recorded.turns:
        records.append((f"{recorded.session} turn", turns_packed([turn], recorded.pictures, known)))
        if turn.reward is not None:
            records.append((f"{recorded.session} reward", {"turn": turn.number, "reward": turn.reward}))
    if recorded.closed is not None:
        records.append((f"{recorded.session} close", recorded.closed))
    return records


def turns_packed(turns: Sequence[SessionTurn], pictures: Mapping[str, bytes], known: set[str]) -> Json:
    """Return turns as the payload of a record, with the bytes of images not in `known`; adds these to `known`."""
    new = dict.fromkeys(image for turn in turns for image in turn.images if image not in known)
    known.update(new)
    images = {"images": [base64.b64encode(pictures[image]).decode() for image in new]} if new else {}
    return {"turns": [_packed(turn) for turn in turns]} | images


def turns_unpacked(payload: Json) -> tuple[list[SessionTurn], dict[str, bytes]]:
    """Return the turns of a record, and the new images by their SHA-256 as hex text."""
    images = [base64.b64decode(image) for image in payload.get("images", ())]
    return [_unpacked(turn) for turn in payload["turns"]], {hashlib.sha256(each).hexdigest(): each for each in images}


def _packed(turn: SessionTurn) -> Json:
    logprobs = [None if math.isnan(value) else value for value in turn.logprobs.tolist()]
    lists = {"added": turn.added.tolist(), "output": turn.output.tolist(), "logprobs": logprobs}
    record = dict(vars(turn)) | lists | {"images": list(turn.images)}
    if not (turn.images or turn.shared_images):
        del record["images"], record["shared_images"]
    return record


def _unpacked(packed: Json) -> SessionTurn:
    logprobs = [math.nan if value is None else value for value in packed["logprobs"]]
    arrays = {"added": np.asarray(packed["added"], np.int32), "output": np.asarray(packed["output"], np.int32)}
    return SessionTurn(**(packed | arrays | {"logprobs": np.asarray(logprobs, np.float32)}))
