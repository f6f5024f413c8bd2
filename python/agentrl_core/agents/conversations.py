"""Lanes: which conversation of a session a request belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class RequestPosition(NamedTuple):
    """Position of a request in the conversations of a session.

    Attributes:
        lane: number of its conversation.
        behind: place of the message in its history that is the lane's last answer; None: the history is another one.
        is_new: whether the lane begins with it.
    """

    conversation: int
    behind: int | None
    is_new: bool


class SessionConversations:
    """The conversations of a session, which are trajectories of one episode.

    A request belongs to the lane of the last answer in its history. A history without an answer of ours (summed up, or
    rewritten) belongs to the newest lane that began with the same first message and tools. While a lane's own request
    is being answered it takes no other: what runs in parallel is a lane of its own, and so is whatever else nobody has
    heard of, such as a sub-agent.
    """

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        """The lane of each answer, by the digest of the chat that ends with it."""
        self._tips: list[str] = []
        self._openings: list[str] = []
        self._busy: set[int] = set()

    @classmethod
    def of(cls, answers: Iterable[tuple[int, str, str]]) -> SessionConversations:
        """Return lane, digest of the chat, and for a new lane the digest of its first message, of each answer."""
        lanes = cls()
        for lane, chat, opening in answers:
            while len(lanes._tips) <= lane:
                lanes._add("")
            lanes._openings[lane] = opening or lanes._openings[lane]
            lanes.end(lane, chat)
        return lanes

    def begin(self, chain: Sequence[str]) -> RequestPosition:
        """Take a request, by the digests of its messages; its lane is busy until `end` or `give_up`."""
        found: int | None = None
        behind = None
        for place in range(len(chain) - 2, -1, -1):
            if chain[place] in self._of:
                found = self._of[chain[place]]
                behind = place if self._tips[found] == chain[place] else None
                break
        else:
            same = [lane for lane, opening in enumerate(self._openings) if opening == chain[0]]
            found = max(same, default=None)
        if found is None or found in self._busy:
            found, behind, is_new = self._add(chain[0]), None, True
        else:
            is_new = False
        self._busy.add(found)
        return RequestPosition(found, behind, is_new)

    def end(self, lane: int, chat: str) -> None:
        """Its request was answered: `chat` is the digest of the chat that ends with the answer; empty: of none."""
        self._busy.discard(lane)
        self._tips[lane] = chat
        if chat:
            self._of[chat] = lane

    def give_up(self, lane: int) -> None:
        """Its request was not answered."""
        self._busy.discard(lane)

    def another(self, opening: str) -> int:
        """Return a lane that begins beside the others, busy: another answer to the same request."""
        lane = self._add(opening)
        self._busy.add(lane)
        return lane

    def _add(self, opening: str) -> int:
        self._tips.append("")
        self._openings.append(opening)
        return len(self._tips) - 1
