"""Find the tokens that a model's chat template puts after an answer, by rendering short chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.upstream import Upstream
from agentrl_core.env.image import images_in
from agentrl_core.exceptions import EngineError

_QUESTION: Json = {"role": "user", "content": "agentrl question"}
_ANSWERS: tuple[Json, Json] = (
    {"role": "assistant", "content": "agentrl answer"},
    {"role": "assistant", "content": "something else!"},
)


_NEXT = "agentrl next"


@dataclass(frozen=True)
class _PlaceholderTurn:
    """A short answer that replaces the real one in a rendered chat, with its end as the template writes it."""

    answer: Json
    end: int
    """The token that ends the answer in the middle of a chat: an end token, or the first token of the next message."""
    count: int
    """Number of occurrences of `end` up to the end of the turn."""
    closings: tuple[int, ...]
    """The tokens that may have ended the real answer: `end`, and those that end the last message of a chat."""


class TemplateSuffix:
    """Find the tokens that the template adds for the messages after an answer, without rendering the whole chat.

    A short chat of a question and an answer replaces the real one, so the work depends only on the new messages, not
    on the length of the chat. For each kind of messages, one comparison with the rendered real chat checks that the
    template writes them alike. If it does not, `tokens_after` returns None, and the whole chat must be rendered.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._turns: dict[str, _PlaceholderTurn | None] = {}
        self._agrees: dict[str, bool] = {}
        self._ended: dict[str, tuple[list[int], list[int]]] = {}
        """By options: a short chat that ends with an answer, and a list with its end token, empty without one."""

    async def tokens_after(
        self,
        answered: Sequence[Json],
        following: Sequence[Json],
        tools: Sequence[Json] | None,
        options: Json | None,
        last: int,
    ) -> list[int] | None:
        """Return the tokens from the end of an answer to the assistant's next turn, or None if they are unknown.

        Args:
            answered: the chat up to the answer, which is its last message.
            following: the messages after the answer.
            tools: tools of the request.
            options: options of the template.
            last: the last sampled token of the answer; if it is not an end token, the result starts with one.
        """
        calls = answered[-1].get("tool_calls") or []
        is_answered = bool(calls) and following[0].get("role") == "tool"
        stand_in = await self._stand_in(
            [_without_arguments(call) for call in calls] if is_answered else [], following, options
        )
        if stand_in is None:
            return None
        stand_in_tokens, end, closings = stand_in
        roles_and_images = [(message.get("role"), bool(images_in(message))) for message in following]
        kind = f"{roles_and_images} {is_answered} {bool(tools)} {options}"
        if kind not in self._agrees:
            chat_tokens = await self._tokenize([*answered, *following], tools, options, open_turn=True)
            self._agrees[kind] = (
                chat_tokens is not None and chat_tokens[end - len(stand_in_tokens) :] == stand_in_tokens[end:]
            )
        if not self._agrees[kind]:
            return None
        return stand_in_tokens[end + 1 :] if last in closings else stand_in_tokens[end:]

    async def _stand_in(
        self, calls: Sequence[Json], following: Sequence[Json], options: Json | None
    ) -> tuple[list[int], int, tuple[int, ...]] | None:
        """Return a short chat with the messages after an answer, the place of the answer's end, and its end tokens."""
        role = str(following[0].get("role"))
        attempts = [partial(self._answer, options), partial(self._answer_before, role, options)]
        if calls:
            attempts.insert(0, partial(self._call, calls, role, options))
        for number, attempt in enumerate(attempts):
            kind = f"{len(attempts) - number} {len(calls)} {role} {options}"
            if kind not in self._turns:
                self._turns[kind] = await attempt()
            turn = self._turns[kind]
            if turn is None:
                continue
            answer = _with_calls(calls) if "tool_calls" in turn.answer else turn.answer
            tokens = await self._tokenize([_QUESTION, answer, *following], None, options, open_turn=True)
            ends = [place for place, token in enumerate(tokens or ()) if token == turn.end]
            if tokens is not None and len(ends) >= turn.count:
                return tokens, ends[turn.count - 1], turn.closings
        return None

    async def _answer(self, options: Json | None) -> _PlaceholderTurn | None:
        """Return a placeholder answer that ends like the last message of a chat; None if the template writes no end."""
        last, ending = await self._last(options)
        return _PlaceholderTurn(_ANSWERS[0], ending[0], last.count(ending[0]), (ending[0],)) if ending else None

    async def _last(self, options: Json | None) -> tuple[list[int], list[int]]:
        """Return a short chat that ends with an answer, and a list of the token that ends it, empty without one."""
        if str(options) not in self._ended:
            first, second = [
                await self._tokenize([_QUESTION, each], None, options, open_turn=False) for each in _ANSWERS
            ]
            self._ended[str(options)] = first or [], _common_suffix(first, second)[:1]
        return self._ended[str(options)]

    async def _answer_before(self, role: str, options: Json | None) -> _PlaceholderTurn | None:
        """Return a placeholder answer that ends as before a message of `role`, or with that message's first token."""
        following: Json = {"role": role, "content": _NEXT}
        first, second = [
            await self._tokenize([_QUESTION, each, following], None, options, open_turn=False) for each in _ANSWERS
        ]
        _, ending = await self._last(options)
        shared = _common_suffix(first, second)
        if not shared or first is None:
            return None
        place = len(first) - len(shared)
        return _PlaceholderTurn(_ANSWERS[0], shared[0], first[: place + 1].count(shared[0]), (shared[0], *ending))

    async def _call(self, calls: Sequence[Json], role: str, options: Json | None) -> _PlaceholderTurn | None:
        """Return a placeholder answer with calls, which ends as before their results."""
        last, ending = await self._last(options)
        answer = _with_calls(calls)
        result = {"role": role, "content": _NEXT, "tool_call_id": calls[0].get("id")}
        alone = await self._tokenize([_QUESTION, answer], None, options, open_turn=False)
        with_result = await self._tokenize([_QUESTION, answer, result], None, options, open_turn=False)
        if alone is None:
            return None
        if ending and ending[0] in alone[_common_prefix_length(alone, last) :]:
            return _PlaceholderTurn(answer, ending[0], alone.count(ending[0]), (ending[0],))
        if with_result is None:
            return None
        # The template ends a call differently from an answer, or only by the start of the next message.
        same = _common_prefix_length(alone, with_result)
        place = same - 1 if ending and same == len(alone) else same
        if not 0 <= place < len(with_result):
            return None
        closings = (with_result[place], *alone[place : place + 1], *ending)
        return _PlaceholderTurn(
            answer, with_result[place], with_result[: place + 1].count(with_result[place]), closings
        )

    async def _tokenize(
        self, messages: Sequence[Json], tools: Sequence[Json] | None, options: Json | None, *, open_turn: bool
    ) -> list[int] | None:
        """Return the tokens of a chat, or None if the upstream fails, as for messages that the template refuses."""
        try:
            return await self._upstream.tokenize(messages, tools, options, open_turn=open_turn)
        except EngineError:
            return None


def _with_calls(calls: Sequence[Json]) -> Json:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def _common_prefix_length(first: list[int], second: list[int]) -> int:
    """Count the first tokens that two chats have in common."""
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    return same


def _common_suffix(first: list[int] | None, second: list[int] | None) -> list[int]:
    """Return the last tokens that two chats have in common."""
    if first is None or second is None:
        return []
    same = 0
    while same < min(len(first), len(second)) and first[-1 - same] == second[-1 - same]:
        same += 1
    return first[len(first) - same :]


def _without_arguments(call: Json) -> Json:
    """Return a call without its arguments, since these may contain any token, even the end token."""
    function = call.get("function") or {}
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function.get("name"), "arguments": "{}"},
    }
