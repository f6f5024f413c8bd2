"""Find the conversation of a session that a request belongs to. Conversations are also called lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class RequestPosition(NamedTuple):
    """Position of a request in the conversations of a session.

    Attributes:
        conversation: number of the conversation.
        last_answer: index of the message that is the conversation's last answer; None: the history was changed.
        is_new: whether the conversation begins with this request.
    """

    conversation: int
    last_answer: int | None
    is_new: bool


class SessionConversations:
    """The conversations of a session, which are trajectories of one episode.

    A request belongs to the conversation of the last recorded answer in its history. A history without a recorded
    answer (summarised or rewritten) belongs to the newest conversation that began with the same first message and
    tools. A conversation handles one request at a time: parallel requests, and requests that match no conversation,
    such as those of sub-agents, begin new ones.
    """

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        """The conversation of each answer, by the digest of the chat that ends with it."""
        self._tips: list[str] = []
        self._openings: list[str] = []
        self._busy: set[int] = set()

    @classmethod
    def of(cls, answers: Iterable[tuple[int, str, str]]) -> SessionConversations:
        """Create the conversations from recorded answers."""
        lanes = cls()
        for lane, chat, opening in answers:
            while len(lanes._tips) <= lane:
                lanes._add("")
            lanes._openings[lane] = opening or lanes._openings[lane]
            lanes.end(lane, chat)
        return lanes

    def begin(self, chain: Sequence[str]) -> RequestPosition:
        """Start a request, given the digests of its messages; its conversation is busy until `end` or `give_up`."""
        conversation: int | None = None
        last_answer = None
        for place in range(len(chain) - 2, -1, -1):
            if chain[place] in self._of:
                conversation = self._of[chain[place]]
                last_answer = place if self._tips[conversation] == chain[place] else None
                break
        else:
            same = [lane for lane, opening in enumerate(self._openings) if opening == chain[0]]
            conversation = max(same, default=None)
        if conversation is None or conversation in self._busy:
            conversation, last_answer, is_new = self._add(chain[0]), None, True
        else:
            is_new = False
        self._busy.add(conversation)
        return RequestPosition(conversation, last_answer, is_new)

    def end(self, lane: int, chat: str) -> None:
        """Record an answered request: `chat` is the digest of the chat that ends with the answer, empty if unknown."""
        self._busy.discard(lane)
        self._tips[lane] = chat
        if chat:
            self._of[chat] = lane

    def give_up(self, lane: int) -> None:
        """Release a conversation whose request was not answered."""
        self._busy.discard(lane)

    def another(self, opening: str) -> int:
        """Begin another busy conversation, for a further answer to the same request, and return its number."""
        lane = self._add(opening)
        self._busy.add(lane)
        return lane

    def _add(self, opening: str) -> int:
        self._tips.append("")
        self._openings.append(opening)
        return len(self._tips) - 1
