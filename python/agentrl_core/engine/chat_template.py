"""Verify that a chat template renders a whole chat, and cut out the tokens that the model generates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.engine.chat_messages import REASONING, Message, leaves, texts_of
from agentrl_core.engine.chat_renderer import ANSWER, NAME, QUESTION, VALUE, ChatRenderer, Tools, call_of
from agentrl_core.engine.rendered_history import Markers, RenderedHistory, RenderedTurn
from agentrl_core.engine.rendered_text_check import Claims, missing_of_answer, missing_of_history
from agentrl_core.exceptions import UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tokens = NDArray[np.int32]

RESULT = "agentrl result"
THOUGHT = "agentrl reasoning"
_NEXT: Message = {"role": "user", "content": "agentrl next question"}
_EMPTY_TAGS = re.compile(r"\s*<(\w+)>\s*</\1>\s*")


@dataclass(frozen=True)
class Answered:
    """One answer of a chat, with the tokens that the model reads before it and generates.

    Attributes:
        message: index of the answer in the chat.
        context: token ids that the model reads before the answer.
        action: token ids that the model generates, including the token that ends the turn.
    """

    message: int
    context: Tokens
    action: Tokens


class _DiffersFromHistoryError(Exception):
    """Raised if an answer cut out of the rendered history differs from the same answer rendered on its own."""


class ChatTemplate:
    """The chat template of a tokenizer; short test chats show how it opens and ends turns.

    Messages have to be plain (`chat_messages.plain_message`).

    Args:
        tokenizer: a Hugging Face tokenizer.
        template: its chat template, or several by name; None: `tokenizer.chat_template`.
        chat_template_kwargs: options of the template, such as `{"enable_thinking": False}`.

    Raises:
        InvalidInputError: no chat template, or an option that is not the template's.
        UnsupportedError: the template does not render an answer, or no special token ends it.

    Attributes:
        ending: the special tokens after an answer; the last one ends it.
        end: the token that ends an answer.
        ends: the tokens with which the model may end a turn: an answer, an answer in the middle of a chat, or a call.
            For templates that write no end, the first tokens of a user's and of a tool's message.
        ends_with_next: whether the template writes no end, so that a turn ends when the next message begins.
        end_in_history: the token that ends an answer in the middle of a chat.
        opening: the text with which the template opens an answer.
        shows_tools: whether the template renders the schemas of tools.
        renders_calls: whether the template renders the calls of an answer.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str | Mapping[str, str] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer: Any = tokenizer
        self._renderer = ChatRenderer(tokenizer, template, chat_template_kwargs)
        self.render = self._renderer.render
        self.shows_tools, self.renders_calls = self._renderer.shows_tools, self._renderer.renders_calls
        self._special, self._splits = _patterns(self._tokenizer)
        self._encode_chunk = lru_cache(maxsize=4096)(self._encoded)
        last = self.render([QUESTION, ANSWER])
        if ANSWER["content"] not in last:
            raise UnsupportedError(f"Chat: {self._renderer.error('does not render an answer; take one that does')}")
        opened = self.render([QUESTION], open_turn=True)
        self.opening = opened[_common_length(opened, self.render([QUESTION])) :]
        header = last.partition(ANSWER["content"])[0]
        self._header_of_answer = header[header.rfind(self.opening) + len(self.opening) :].strip()
        self._next_ends: dict[str, str] = {}
        self._shown_roles = dict.fromkeys(("assistant", "developer", "system", "user"), True)
        self.ending, self.end_in_history = self._known_ends(last)
        self.end = self.ending[-1]
        self.ends_with_next = bool(self._next_ends)
        self._empty_thought: tuple[str, re.Pattern[str]] | None = None
        inside = self._known_thoughts(last, opened)
        ends = [self.end, *self._ends_of_calls(), self.end_in_history, *self._next_ends.values()]
        self.ends = tuple(dict.fromkeys(end for end in ends if end not in inside))
        # Without an end token, a turn is all of its rendered text.
        self._closes = re.compile(r"\Z" if self.ends_with_next else "|".join(map(re.escape, self.ends)))
        ends_in_history = self._next_ends.values() if self.ends_with_next else (*self.ends, self.end_in_history)
        self._closes_in_history = re.compile("|".join(map(re.escape, ends_in_history)))

    def answers(
        self,
        messages: Sequence[Message],
        tools: Tools = (),
        *,
        chat: str = "chat",
        encode: Callable[[str, str, slice], Tokens] | None = None,
    ) -> list[Answered]:
        """Return the tokens that the model reads and generates at each answer of a chat.

        An answer is rendered as the last message, as the model should generate it: reasoning, content, calls, and the
        token that ends the turn. It is cut out as text, and tokenised apart from its context if a token would span
        both. If the template writes an empty thought for an answer without reasoning, it belongs to the context. A
        context that continues the previous context and its answer begins with their tokens.

        In a long chat, most answers are cut out of the whole chat, which is rendered once. Answers number 0, 1, 2, 4,
        8, ..., the last one, and the first of each kind (roles, fields, calls, spaces, texts that the template tests)
        are rendered after all messages before them. The other answers are checked by rendering them after only the
        messages around them: system message, question, and the previous answer with the messages after it. If one of
        them differs, none is cut. The time is then linear in the length of the chat, unless the template itself is
        slower: those of Gemma 4 and DiffusionGemma scan all messages for each one (200 answers: 2 s, other templates
        0.1 to 0.4 s).

        Args:
            messages: the chat.
            tools: JSON schemas of the chat's tools.
            chat: name of the chat in errors, such as `chat 3`.
            encode: tokenises a part of a context, given the text before it and the slice of messages in it (images need
                a processor); None: `self.encode`.

        Raises:
            UnsupportedError: the template refuses the messages; leaves out a content, reasoning, or a call's name or
                argument; or does not render an answer after its opening.
        """
        try:
            return self._answers(messages, tools, chat, self._history(messages, tools), encode)
        except _DiffersFromHistoryError:
            return self._answers(messages, tools, chat, RenderedHistory("", self._closes_in_history), encode)

    def written(self, message: Message, tools: Tools = ()) -> str:
        """Return an answer as the model writes it, without its end; empty if the template cannot render it."""
        try:
            opened = self.render([QUESTION], tools, open_turn=True)
            rendered = self.render([QUESTION, message], tools)
            _, action = self._cut([QUESTION], message, tools, (opened, rendered), "an answer")
        except UnsupportedError:
            return ""
        for end in (*reversed(self.ending), *self.ends):
            action = action.rstrip() if action.rstrip().endswith(end) else action
            action = action.removesuffix(end)
        return action

    def check(self, messages: Sequence[Message], rendered: str, *, first: int = 0, chat: str = "chat") -> None:
        """Check that a rendered context contains the texts of its messages; see `chat_texts.missing_of_history`.

        Args:
            messages: the messages.
            rendered: the rendered text of the messages.
            first: index of the first message in the chat, for errors.
            chat: name of the chat in errors.

        Raises:
            UnsupportedError: something is missing.
        """
        claims = Claims(rendered)
        for number, message in enumerate(messages, first):
            missing = missing_of_history(message, claims)
            if missing is None and not any(texts_of(message["content"])) and not self._shows(message["role"]):
                missing = "the empty message"
            self._refuse_missing(missing, message, f"{chat}, message {number}")

    def encode(self, text: str, after: str = "") -> Tokens:
        """Return the token ids of a text that follows the text `after`, whose own tokens do not change. int32 [n]."""
        head = after[self._last_split(after) :]
        alone = self._chunks(head)
        together = self._chunks(head + text)
        ids = together[len(alone) :] if together[: len(alone)] == alone else self._chunks(text)
        return np.asarray(ids, dtype=np.int32)

    def token(self, text: str) -> int:
        """Return the id of a token, given its text."""
        return int(self._tokenizer.convert_tokens_to_ids(text))

    def after_answer(self, rendered: str, marker: str) -> str:
        """Return the rendered text after the end of an answer whose last text is `marker`.

        For templates that write no end, this is the whole text after the answer.
        """
        rest = rendered[rendered.rindex(marker) + len(marker) :]
        if self.ends_with_next:
            return rest
        ends = [rest.find(end) + len(end) for end in {*self.ends, self.end_in_history} if end in rest]
        return rest[min(ends, default=0) :]

    def answer_before(self, following: Sequence[Message]) -> Message:
        """Return an answer with a test call for each tool message that follows; its last text is `VALUE`."""
        calls = []
        for message in following:
            if message["role"] != "tool":
                break
            id_field = {"id": message["tool_call_id"]} if "tool_call_id" in message else {}
            calls.append({**call_of(message.get("name", NAME)), **id_field})
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def _history(self, messages: Sequence[Message], tools: Tools) -> RenderedHistory:
        """Return the chat rendered once, up to its last answer, which is always rendered on its own."""
        last = max((place for place, message in enumerate(messages) if message["role"] == "assistant"), default=0)
        try:
            text = self.render(messages[:last], tools) if last else ""
        except UnsupportedError:
            text = ""
        return RenderedHistory(text, self._closes_in_history)

    def _answers(
        self,
        messages: Sequence[Message],
        tools: Tools,
        chat: str,
        history: RenderedHistory,
        encode: Callable[[str, str, slice], Tokens] | None,
    ) -> list[Answered]:
        """Return the answers of a chat, most of them cut out of the rendered history, in time linear in its length.

        See `answers` for those that are rendered after all previous messages, or after some of these.
        """
        answers: list[Answered] = []
        text, tokens, first_new = "", np.empty(0, np.int32), 0
        markers = Markers(self._renderer.source)
        places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        for number, place in enumerate(places):
            new_messages, following = messages[first_new : place + 1], messages[place + 1 : place + 2]
            self._refuse_ends(messages[place], f"{chat}, message {place}")
            kind = markers.kind_of(messages[max(first_new - 1, 0) : place + 1], following, new_messages)
            turn = history.turn(kind, new_messages)
            is_last = place == places[-1]
            if (
                turn is None
                or is_last
                or not number & (number - 1)
                or not self._renders_same(turn, messages, place, tools)
            ):
                rendered = self._turn(messages[: place + 1], following, tools, (text, first_new), chat)
                if turn is None:
                    history.add_turn(kind, new_messages, rendered)
                elif turn != rendered:
                    raise _DiffersFromHistoryError
                turn = rendered
            follows = bool(text) and turn.context.startswith(text)
            added, before = (turn.context[len(text) :], text) if follows else (turn.context, "")
            span = slice(first_new if follows else 0, place)
            context_tokens = self.encode(added, before) if encode is None else encode(added, before, span)
            context_tokens = np.concatenate([tokens, context_tokens]) if follows else context_tokens
            action = self.encode(turn.action, after=turn.context)
            answers.append(Answered(place, context_tokens, action))
            text, tokens, first_new = turn.context + turn.action, np.concatenate([context_tokens, action]), place + 1
        return answers

    def _renders_same(self, turn: RenderedTurn, messages: Sequence[Message], place: int, tools: Tools) -> bool:
        """Return whether an answer cut out of the history is rendered the same after only the messages around it."""
        head = messages[:1] if messages[0]["role"] in ("system", "developer") else []
        following, text = messages[place + 1 : place + 2], turn.own_text
        if self.ends_with_next:  # the next message is not rendered here
            text = text.removesuffix(self._next_end(following, calls=bool(messages[place].get("tool_calls"))))
        before = place
        for _ in range(2):  # some templates write the first tool reply after a question differently from later ones
            before = _last(messages[:before], "assistant")
            if before < 0:
                return False
            question = _last(messages[:before], "user")
            around = [
                *head,
                *(messages[question : question + 1] if question >= 0 else ()),
                *messages[before : place + 1],
            ]
            try:
                if text in self.render(around, tools):
                    return True
                # The template may open an answer differently from how it writes it.
                if turn.is_like(self._turn(around, following, tools, ("", 0), "a part of the chat")):
                    return True
            except UnsupportedError:
                continue
        return False

    def _turn(
        self,
        messages: Sequence[Message],
        following: Sequence[Message],
        tools: Tools,
        known: tuple[str, int],
        chat: str,
    ) -> RenderedTurn:
        """Return the turn of the last message, rendered on its own after the messages before it.

        `known` has the text up to the end of the previous answer, and the number of messages in it.
        """
        *before, message = messages
        text, first_new = known
        opened = self._of_chat(before, tools, chat, open_turn=True)
        rendered = self._of_chat(messages, tools, chat, open_turn=False)
        first, start = (first_new, len(text)) if text and opened.startswith(text) else (0, 0)
        self.check(before[first:], opened[start:].removesuffix(self.opening), first=first, chat=chat)
        context, action = self._cut(before, message, tools, (opened, rendered), f"{chat}, message {len(before)}")
        if self.ends_with_next:
            action += self._next_end(following, calls=bool(message.get("tool_calls")))
        return RenderedTurn(opened.removesuffix(self.opening), context, action)

    def _cut(
        self, before: Sequence[Message], message: Message, tools: Tools, texts: tuple[str, str], where: str
    ) -> tuple[str, str]:
        """Return the context of an answer, and the text that the model generates.

        `texts` has the chat before the answer with the opening of its turn, and the chat that ends with the answer.
        """
        opened, rendered = texts
        context, start = opened, len(opened)
        if not rendered.startswith(opened):
            context, start = self._opened_otherwise(before, message, tools, texts, where)
        turn = rendered[start:]
        begin, end, close = self._bounds(message, turn, where)
        gap = self.opening if self.opening and turn[:begin].startswith(self.opening) else ""
        if not _thinks(message):
            gap += self._empty_thought_of(turn[len(gap) :], begin - len(gap))
        return context + gap, turn[len(gap) : max(end, close)]

    def _bounds(self, message: Message, turn: str, where: str) -> tuple[int, int, int]:
        """Return begin and end of an answer's texts in its turn, and the end of the turn, after checking the texts."""
        claims = Claims(turn)
        self._refuse_missing(missing_of_answer(message, claims), message, where)
        close = self._closes.search(turn, claims.end)
        begin = claims.begin if claims.end else close.start() if close else len(turn)
        return begin, claims.end, close.end() if close else len(turn)

    def _empty_thought_of(self, turn: str, begin: int) -> str:
        """Return the empty thought at the start of a turn whose own texts start at `begin`; empty if there is none."""
        if self._empty_thought is None:
            return ""
        thought, spaced = self._empty_thought
        if turn.startswith(thought):
            return thought
        match = spaced.match(turn[:begin])
        return match[0] if match else ""

    def _opened_otherwise(
        self, before: Sequence[Message], message: Message, tools: Tools, texts: tuple[str, str], where: str
    ) -> tuple[str, int]:
        """Return an answer's context and the start of its turn, if the template changes the opening before this answer.

        Either the answer has another opening, without the thought that the template opens for the model; or it changes
        the rendering of earlier messages, such as in a template that drops earlier reasoning once there is an answer.
        """
        opened, rendered = texts
        history = _common_length(self._of_chat(before, tools, where, open_turn=False), opened) if before else 0
        same = _common_length(opened, rendered)
        if same >= history:
            # A short text may also occur in the header.
            start = max(history, self._header(opened, same))
            begin, _, _ = self._bounds(message, rendered[start:], where)
            gap = rendered[start : start + begin]
            plain = not gap[len(self._empty_thought_of(gap, len(gap))) :].strip()
            if start > history and (plain or message.get("tool_calls")):
                return rendered[:start], start
        elif history < len(opened):
            opening, probe = opened[history:], self._of_chat([*before, ANSWER], tools, where, open_turn=False)
            place = rendered[: _common_length(probe, rendered)].rfind(opening)
            header = probe[place + len(opening) : max(probe.rfind(ANSWER["content"]), 0)]
            header = header[len(self._empty_thought_of(header, len(header))) :]
            # Otherwise the turn also contains an earlier answer.
            if place >= 0 and header.strip() in ("", self._header_of_answer):
                return opened, place + len(opening)
        same = _common_length(opened, rendered)
        old, new = opened[same:], rendered[same:]
        raise UnsupportedError(
            f"{where}: "
            + self._renderer.error(
                f"changes the prompt of this answer once the answer follows: {old!r:.60} becomes {new!r:.60}; take "
                f"one that keeps the prompt, or end the chat before this message"
            )
        )

    def _of_chat(self, messages: Sequence[Message], tools: Tools, chat: str, *, open_turn: bool) -> str:
        """Return a rendered chat; if the template refuses it, the error names the refused message."""
        try:
            return self.render(messages, tools, open_turn=open_turn)
        except UnsupportedError as error:
            number = len(messages)
            while number > 1 and self._refuses(messages[: number - 1], tools):
                number -= 1
            raise UnsupportedError(f"{chat}, message {max(number - 1, 0)}: {error}") from error

    def _refuses(self, messages: Sequence[Message], tools: Tools) -> bool:
        try:
            self.render(messages, tools)
        except UnsupportedError:
            return True
        return False

    def _refuse_missing(self, missing: str | None, message: Message, where: str) -> None:
        if missing is not None:
            raise UnsupportedError(
                f"{where} of role {message['role']!r}: {self._renderer.error(f'leaves out {missing}')}; "
                "take one that renders it"
            )

    def _shows(self, role: str) -> bool:
        """Return whether the template renders a message of this role after an answer or after a call."""
        if role not in self._shown_roles:
            following: Message = {"role": role, "content": RESULT, "name": NAME}
            answers = (ANSWER, self.answer_before([{"role": "tool"}]))
            self._shown_roles[role] = any(
                RESULT in self._renderer.tried([QUESTION, answer, following]) for answer in answers
            )
        return self._shown_roles[role]

    def _refuse_ends(self, message: Message, where: str) -> None:
        """Refuse an answer whose own texts contain an end token, since the model would have stopped there."""
        texts = [*texts_of(message["content"]), message.get(REASONING[0], "")]
        texts += [str(leaf) for call in message.get("tool_calls", ()) for leaf in leaves(call["function"]["arguments"])]
        found = next((end for end in self.ends for text in texts if end in text), None)
        if found is not None:
            raise UnsupportedError(f"{where} holds {found!r}, the token at which the model stops generating; remove it")

    def _encoded(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _chunks(self, text: str) -> list[int]:
        """Return the tokens of a text, tokenised and cached in pieces between special tokens."""
        starts = [0, *(match.start() for match in self._splits.finditer(text)), len(text)]
        pieces = [text[a:b] for a, b in pairwise(starts) if a < b]
        return [token for piece in pieces for token in self._encode_chunk(piece)]

    def _last_split(self, text: str) -> int:
        """Return the start of the last token at which a text can be cut; 0 if there is none."""
        size = 256
        while True:
            # The first match of a part of the text may begin within another token.
            begin = max(0, len(text) - size)
            splits = [match.start() for match in self._splits.finditer(text, begin)]
            if begin == 0 or len(splits) > 1:
                return splits[-1] if splits else 0
            size *= 4

    def _known_ends(self, last: str) -> tuple[list[str], str]:
        """Return the special tokens after an answer, and its end token in history; without any, set `_next_ends`."""
        tail = last.partition(ANSWER["content"])[2]
        middle = self._renderer.tried([QUESTION, ANSWER, _NEXT]).partition(ANSWER["content"])[2]
        at_end = self._run(tail) or self._special.findall(tail)[:1]
        if not at_end:
            called: Message = {"role": "assistant", "content": "", "tool_calls": [call_of(NAME)]}
            for role in ("user", "tool"):
                end = self._end_before(ANSWER, role) or self._end_before(called, role)
                if end:
                    self._next_ends[role] = end
            if not self._next_ends:
                error = f"ends an assistant's turn without a special token ({tail!r:.40}); take one that adds it"
                raise UnsupportedError(f"Chat: {self._renderer.error(error)}")
            end = next(iter(self._next_ends.values()))
            return [end], end
        in_history = self._run(middle.partition(_NEXT["content"])[0]) or at_end
        pairs = enumerate(zip(at_end, in_history, strict=False))
        same = next((place for place, (one, other) in pairs if one != other), min(len(at_end), len(in_history)))
        return (at_end[:same], at_end[same - 1]) if same else (at_end[:1], in_history[0])

    def _end_before(self, answer: Message, role: str) -> str:
        """Return the special token with which a message of a role begins after an answer; empty if there is none."""
        closed = self._renderer.tried([QUESTION, answer])
        continued = self._renderer.tried([QUESTION, answer, {"role": role, "content": RESULT, "name": NAME}])
        rest = continued[_common_length(closed, continued) :].partition(RESULT)[0]
        return next(iter(self._run(rest)), "")

    def _next_end(self, following: Sequence[Message], *, calls: bool) -> str:
        """Return the first token of the next (or most likely next) message, for a template that writes no end."""
        role = following[0]["role"] if following else ""
        return self._next_ends.get(role) or self._next_ends.get("tool" if calls else "user") or self.end

    def _known_thoughts(self, last: str, opened: str) -> set[str]:
        """Find how an answer without reasoning is written; return the special tokens between reasoning and answer.

        An empty thought is written like real reasoning without its text, or as tags with nothing in between.
        """
        thinking = self._renderer.tried([QUESTION, {**ANSWER, **dict.fromkeys(REASONING, THOUGHT)}])
        thought, answer = thinking.find(THOUGHT), thinking.find(ANSWER["content"])
        thinks = 0 <= thought < answer
        same = min(_common_length(opened, last), _common_length(opened, thinking) if thinks else len(opened))
        base = self._header(opened, same)
        between = thinking[thought + len(THOUGHT) : answer] if thinks else ""
        frame, gap = thinking[base:thought] + between if thinks else "", last[base : last.find(ANSWER["content"])]
        if gap.strip() and ("".join(gap.split()) == "".join(frame.split()) or _EMPTY_TAGS.fullmatch(gap)):
            spaced = re.compile(r"\s*" + r"\s*".join(map(re.escape, gap.split())) + r"\s*")
            self._empty_thought = gap, spaced
        return set(self._special.findall(between))

    def _header(self, opened: str, same: int) -> int:
        """Return the end of an answer's header, given that it equals the model's opening for `same` characters."""
        if same == len(opened):
            return same
        ends = [match.end() for match in self._special.finditer(opened[:same])]
        spaces = [place + 1 for place in range(same) if opened[place].isspace()]
        return max([0, *ends[-1:], *spaces[-1:]])

    def _ends_of_calls(self) -> list[str]:
        """Return the token that ends a turn with calls, in a list, if it differs from that of an answer."""
        if not self._renderer.renders_calls or self.ends_with_next:
            return []
        rendered = self.render([QUESTION, self.answer_before([{"role": "tool"}])])
        special_tokens = self._special.findall(rendered[max(rendered.rfind(NAME), rendered.rfind(VALUE)) :])
        return (
            [] if not special_tokens or {self.end, self.end_in_history} & set(special_tokens) else [special_tokens[-1]]
        )

    def _run(self, text: str) -> list[str]:
        """Return the special tokens with which a text begins."""
        special_tokens: list[str] = []
        place = len(text) - len(text.lstrip())
        while match := self._special.match(text, place):
            special_tokens.append(match[0])
            place = match.end()
        return special_tokens


def _last(messages: Sequence[Message], role: str) -> int:
    """Return the index of the last message of a role; -1 if there is none."""
    return next((at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == role), -1)


def _common_length(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts."""
    least, most = 0, min(len(first), len(second))
    while least < most:
        middle = (least + most + 1) // 2
        if first[least:middle] == second[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def _thinks(message: Message) -> bool:
    return REASONING[0] in message or any("</think>" in text for text in texts_of(message["content"]))


def _patterns(tokenizer: Any) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns of all special tokens, and of those at which a text can be cut before tokenisation."""
    added = list(tokenizer.added_tokens_decoder.values())
    special = {str(token) for token in added} | set(tokenizer.all_special_tokens)
    separable = {str(token) for token in added if not (token.lstrip or token.normalized or token.single_word)}

    def pattern(tokens: set[str]) -> re.Pattern[str]:
        longest = sorted(tokens, key=lambda token: (-len(token), token))
        return re.compile("|".join(map(re.escape, longest)) or r"(?!)")

    return pattern(special), pattern(separable)
