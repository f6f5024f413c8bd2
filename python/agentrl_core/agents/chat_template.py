"""What a model's chat template puts behind an answer, found out by asking for it: no template is read here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.upstream import Upstream
from agentrl_core.exceptions import EngineError

_QUESTION: Json = {"role": "user", "content": "agentrl question"}
_ANSWERS: tuple[Json, Json] = (
    {"role": "assistant", "content": "agentrl answer"},
    {"role": "assistant", "content": "something else!"},
)


@dataclass(frozen=True)
class _Turn:
    """An answer of nobody, as the template writes it."""

    answer: Json
    end: int
    """The token that ends it."""
    count: int
    """How often that token is there up to the end of the turn."""


class Template:
    """The tokens of the messages behind an answer, without those before it.

    A short chat of a question and an answer stands in place of the real one, so that the work is that of the new
    messages however long the chat is. That the template writes them the same behind the real chat is looked at once for
    each kind of messages; where it does not, nobody knows them (None), and the whole chat has to be rendered.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._turns: dict[str, _Turn | None] = {}
        self._agrees: dict[str, bool] = {}

    async def behind(
        self,
        answered: Sequence[Json],
        following: Sequence[Json],
        tools: Sequence[Json] | None,
        options: Json | None,
        last: int,
    ) -> list[int] | None:
        """The tokens from behind an answer to the next word of the assistant.

        Args:
            answered: the chat up to the answer, which is its last message.
            following: the messages behind it.
            tools: of the request.
            options: of the template.
            last: the last token of the answer, as it was sampled: what is missing of its end is put in front.
        """
        calls = answered[-1].get("tool_calls") or []
        is_answered = bool(calls) and following[0].get("role") == "tool"
        turn = await self._turn([_without_arguments(call) for call in calls] if is_answered else [], options)
        if turn is None and is_answered:  # a template without calls
            turn = await self._turn([], options)
        if turn is None:
            return None
        written = await self._tokenize([_QUESTION, turn.answer, *following], None, options, open_turn=True)
        ends = [place for place, token in enumerate(written or ()) if token == turn.end]
        if written is None or len(ends) < turn.count:
            return None
        end = ends[turn.count - 1]
        kind = f"{[message.get('role') for message in following]} {is_answered} {bool(tools)} {options}"
        if kind not in self._agrees:
            whole = await self._tokenize([*answered, *following], tools, options, open_turn=True)
            self._agrees[kind] = whole is not None and whole[end - len(written) :] == written[end:]
        if not self._agrees[kind]:
            return None
        return written[end + 1 :] if last == turn.end else written[end:]

    async def _turn(self, calls: Sequence[Json], options: Json | None) -> _Turn | None:
        """The turn that stands in place of an answer with these calls."""
        kind = f"{len(calls)} {options}"
        if kind not in self._turns:
            answers = [answer | ({"tool_calls": list(calls)} if calls else {}) for answer in _ANSWERS]
            written = [
                await self._tokenize([_QUESTION, answer], None, options, open_turn=False)
                for answer in (_ANSWERS if not calls else answers)
            ]
            self._turns[kind] = await self._found(written, options, calls=bool(calls))
        turn = self._turns[kind]
        return (
            None
            if turn is None
            else _Turn(turn.answer | ({"tool_calls": list(calls)} if calls else {}), turn.end, turn.count)
        )

    async def _found(self, written: Sequence[list[int] | None], options: Json | None, *, calls: bool) -> _Turn | None:
        first, second = written
        if first is None or second is None:
            return None
        if calls:
            plain = await self._turn([], options)
            if plain is None:
                return None
            end = plain.end
        else:
            same = 0
            while same < min(len(first), len(second)) and first[-1 - same] == second[-1 - same]:
                same += 1
            if not same:
                return None
            end = first[-same]
        return _Turn(_ANSWERS[0], end, first.count(end))

    async def _tokenize(
        self, messages: Sequence[Json], tools: Sequence[Json] | None, options: Json | None, *, open_turn: bool
    ) -> list[int] | None:
        """The tokens, or None where the template does not take such messages."""
        try:
            return await self._upstream.tokenize(messages, tools, options, open_turn=open_turn)
        except EngineError:
            return None


def _without_arguments(call: Json) -> Json:
    """A call by its name alone: its arguments may hold anything, its end token too."""
    function = call.get("function") or {}
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function.get("name"), "arguments": "{}"},
    }
