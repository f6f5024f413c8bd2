"""The path of a branch: its tokens in the forest, the open action, and the next context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core._util.json_text import is_unicode
from agentrl_core.data.forest import Forest, Kind
from agentrl_core.data.table_codes import ROUTED_EXPERTS, StepFlag
from agentrl_core.engine.base import Request, Sampling, Segment
from agentrl_core.env.base import Action, Content, as_messages
from agentrl_core.env.image import Image, images_in
from agentrl_core.env.step_record import StepRecord
from agentrl_core.exceptions import DataError, InvalidInputError
from agentrl_core.operators import columns

if TYPE_CHECKING:
    from agentrl_core.engine.chat import Chat


@dataclass(frozen=True)
class Position:
    """A position on the path of a branch, between two of its tokens.

    Attributes:
        node: handle of the node before the position; None: the end of the path.
        end: number of that node's tokens before the position; None: all.
        tokens: number of the path's tokens before it.
        turns: number of answered turns before it.
        follows_tool: whether a tool result ends there.
    """

    node: int | None
    end: int | None
    tokens: int
    turns: int
    follows_tool: bool = False

    def __post_init__(self) -> None:
        for name in ("node", "end", "tokens", "turns"):
            value = getattr(self, name)
            if isinstance(value, np.integer):  # sums of small NumPy integers overflow
                object.__setattr__(self, name, int(value))


Shown = tuple[int, int, tuple[Image, ...]]
"""Images, and the range of the tokens of their message."""


class NewContext(NamedTuple):
    """A context that replaces the current one.

    Attributes:
        tokens: all tokens of the context.
        begins: index of the first token of each turn in it.
        images: images of the context, by message.
    """

    tokens: NDArray[np.int32]
    begins: dict[int, int]
    images: list[Shown]


_NOTHING: tuple[Content, NDArray[np.int32]] = "", np.empty(0, np.int32)
_UNREAD: tuple[object, str] = None, ""


class TokenPath:
    """The tokens of one trajectory, built piece by piece; sampled tokens are never re-tokenised from text.

    An answer of the environment is added when the next context is needed, so that more messages can join it.

    Attributes:
        name: name of the path, for messages.
        handle: handle of the trajectory in the forest; a rollback changes it.
        here: start of the open or next action; None before the prompt.
        open: parts of the unanswered action, sampled or written.
        spans: positions of the actions in the current context.
        acted: for each number of turns, the number of actions that the episode had answered; None: of another episode.
        first: first node of the path; None: none yet.
        counted: number of tokens that the progress has counted.
        stop_tokens: the tokens that end an action.
    """

    def __init__(self, name: str, forest: Forest, chat: Chat, handle: int) -> None:
        self.name = name
        self.handle = handle
        self.here: Position | None = None
        self.open: list[Segment | NDArray[np.int32]] = []
        self.acted: list[int | None] = [0]
        self.first: int | None = None
        self.counted = 0
        self._forest = forest
        self._chat = self._plain_chat = chat
        self.stop_tokens = tuple(chat.stop_token_ids)
        self._ends_with_next = getattr(chat, "ends_with_next", False)
        """Whether a turn ends with the first token of the next message, because it lacks a stop token."""
        self._nodes: list[tuple[int | None, int]] = []
        """Each node with the number of tokens up to its end."""
        self._pending: list[Content] = []
        self._answer: StepRecord | None = None
        """Messages of the next context that are not in the forest yet, and the answer that they start with."""
        self._ends: list[Position] = []
        """End of each turn including its answer; `_closings` has the ends of the actions."""
        self._closings: list[Position] = []
        self._rendered = _NOTHING
        """The last rendered observation, and its tokens."""
        self._read = _UNREAD
        """The last decoded part of the open action, and the text up to its end."""
        self._images: list[Shown] = []
        """Parts of the context with images, and their token ranges."""
        self.spans: dict[int, tuple[int, int]] = {}

    @property
    def turns(self) -> int:
        """Number of answered turns."""
        return len(self.acted) - 1

    @property
    def length(self) -> int:
        """Number of tokens of the path that are in the forest."""
        return self._nodes[-1][1] if self._nodes else 0

    @property
    def open_length(self) -> int:
        """Number of tokens of the open action."""
        return sum(len(part.tokens) if isinstance(part, Segment) else len(part) for part in self.open)

    @property
    def images(self) -> tuple[Image, ...]:
        """All images of the path, in order."""
        return tuple(image for _, _, images in self._images for image in images)

    @property
    def text(self) -> str:
        """Text of the open action, without its stop token."""
        if not self.open:
            return ""
        last = self.open[-1]
        if self._read[0] is not last:
            parts = [part.tokens if isinstance(part, Segment) else part for part in self.open]
            self._read = last, self._chat.decode(parts[0] if len(parts) == 1 else np.concatenate(parts))
        return self._read[1]

    @property
    def action(self) -> Action:
        """The open action in the form that the environment gets: text, parts, and why it ended."""
        last = self.open[-1] if self.open else None
        reason = last.finish_reason if isinstance(last, Segment) else "stop"
        return Action(self.text, reason, getattr(self._chat, "answer_form", None))

    @property
    def cut(self) -> bool:
        """Whether the open action lacks a stop token."""
        if not self.open:
            return False
        last = self.open[-1]
        if isinstance(last, Segment):
            return last.finish_reason != "stop"
        return int(last[-1]) not in self.stop_tokens

    def use_options(self, chat_template_kwargs: Mapping[str, Any] | None) -> None:
        """Set the options of the chat template for all contexts from here on; None: no options."""
        plain = self._plain_chat
        self._chat = plain.with_options(chat_template_kwargs) if chat_template_kwargs else plain
        self.stop_tokens = tuple(self._chat.stop_token_ids)

    def prompt(self, content: Content, tools: Any, state: bytes | str, most: int) -> NDArray[np.int32]:
        """Start the path with a prompt, which must be shorter than `most` tokens, and return the prompt's tokens."""
        tokens = self._chat.prompt(content, tools=tools) if tools else self._chat.prompt(content)
        if len(tokens) >= most:
            raise DataError(
                f"context_tokens={most} is too small for the {len(tokens)} tokens of the prompt of branch {self.name}; "
                f"raise context_tokens, shorten the prompt, or remove the task"
            )
        self.append(tokens, "prompt", state=state, images=images_in(content))
        self.here = self._end()
        return tokens

    def request(self, sampling: Sampling, max_tokens: int, most: int, group: str) -> Request | None:
        """Return an engine request for at most `max_tokens` more tokens; None if the path has `most` tokens already."""
        self.flush()
        max_tokens = min(max_tokens, most - self.length)
        if max_tokens < 1:
            return None
        tokens, seed = self._forest.tokens(self.handle), self._forest.segment_seed(self.handle)
        images = self.images if self._images else ()
        return Request(tokens, seed, _limited(sampling, max_tokens, self.stop_tokens), group, images)

    def sampled(self, segment: Segment, sampling: Sampling, policy: int) -> None:
        """Append a generated part of the open action.

        Args:
            segment: the engine's response.
            sampling: the sampling that was requested.
            policy: number of the policy.
        """
        options: dict[str, Any] = {}
        if segment.routed_experts is not None:  # recorded up to the token before the last one
            begin = self.length + len(segment.tokens) - 1 - len(segment.routed_experts)
            options["columns"] = {ROUTED_EXPERTS: (begin, segment.routed_experts)}
        self.append(
            segment.tokens,
            "action",
            logprobs=segment.logprobs,
            entropies=segment.entropies,
            policy=policy,
            policy_version=segment.policy_version,
            seed=segment.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            finish_reason=segment.finish_reason,
            **options,
        )
        self.open.append(segment)

    def write(
        self, content: str | ArrayLike, vocabulary_size: int, *, trained: bool, ends: bool = True, share: float = 1.0
    ) -> None:
        """Append a part of the open action that was not sampled.

        Args:
            content: a text, or tokens.
            vocabulary_size: V, which tokens are below.
            trained: whether its tokens are trained.
            ends: whether a text ends the turn.
            share: the first floor(share * n) of its n tokens are written, if it does not end the turn.

        Raises:
            InvalidInputError: a token is not in the vocabulary, or the text is not Unicode.
        """
        if not 0 <= share <= 1:
            raise InvalidInputError(f"write: share is {share!r}; give a number from 0 to 1")
        tokens = self._written(content, vocabulary_size, ends=ends)
        tokens = tokens if ends else tokens[: int(share * len(tokens))]
        if len(tokens):
            self.append(tokens, "action", trainable=None if trained else np.zeros(len(tokens), np.uint8))
            self.open.append(tokens)

    def _written(self, content: str | ArrayLike, vocabulary_size: int, *, ends: bool) -> NDArray[np.int32]:
        """Return the tokens of an action that was not sampled."""
        if isinstance(content, str):
            if not is_unicode(content):
                raise InvalidInputError(f"write: content {content!r:.80} is not Unicode (a lone surrogate); remove it")
            tokens = self._plain_chat.action(content)
            return np.asarray(tokens if ends else tokens[:-1], np.int32)
        numbers = columns.integers(content, "write: content")
        invalid = np.flatnonzero((numbers < 0) | (numbers >= vocabulary_size))
        if len(invalid):
            raise InvalidInputError(
                f"write: content[{invalid[0]}] is {numbers[invalid[0]]}; give token ids from 0 to {vocabulary_size - 1}"
            )
        return numbers.astype(np.int32)

    def append(
        self,
        tokens: Sequence[int] | NDArray[np.int32],
        kind: Kind,
        *,
        images: tuple[Image, ...] = (),
        **options: Any,
    ) -> None:
        """Append tokens and their images to the path, as a new node of the forest."""
        if images:
            options["blobs"] = self.blobs(images)
            self._images.append((self.length, self.length + len(tokens), images))
        node = self._forest.append(self.handle, tokens, kind=kind, **options)
        self.first = node if self.first is None else self.first
        self._nodes.append((node, self.length + len(tokens)))

    def _lacks_end_of_turn(self) -> bool:
        """Return whether the open action lacks a stop token, and the next message does not start with one."""
        return self.cut and not self._ends_with_next

    def _observed(self, content: Content, before: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
        """Return the tokens of messages that follow an action: the last one of the path, or of the tokens `before`."""
        if not self._ends_with_next:
            return self._chat.observation(content)
        tokens = self._forest.tokens(self.handle) if before is None else before
        return self._chat.observation(content, int(tokens[-1]) if len(tokens) else None)

    def length_with(self, observation: Content) -> int:
        """Return the length that the path would have with this answer to the open action."""
        self._rendered = observation, self._observed(observation)
        return self.length + self._lacks_end_of_turn() + len(self._rendered[1])

    def close_action(self, answer: StepRecord | None, acted: int) -> None:
        """Close the open action; the next context starts with the answer, if there is one."""
        if self._lacks_end_of_turn():
            self.append([self._chat.end_of_turn], "injected")
        self.open = []
        if answer is not None:
            self.acted.append(acted)
        self.here = self._end()
        if answer is not None:
            self._closings.append(self.here)
        self._pending = [] if answer is None else [answer.outcome.observation or ""]
        self._answer = answer

    def close(self, acted: int) -> None:
        """Close the last action of the trajectory, which gets no next context."""
        self.open = []
        self.acted.append(acted)
        self._closings.append(self._end())

    def add_message(self, content: Content) -> None:
        """Add a message to the next context."""
        if self._pending == [""]:  # there are no messages yet
            self._pending = []
        self._pending.append(content)

    def set_answers(self, turns: int, answers: Sequence[StepRecord]) -> None:
        """Set the answer to the last of `turns` actions, and the messages after it."""
        self.acted, self.here = self.acted[: turns + 1], self._closings[turns - 1]
        self._answer, self._pending = answers[0], [answers[0].outcome.observation or ""]
        for answer in answers[1:]:
            self.add_answer(answer)

    def add_answer(self, answer: StepRecord) -> None:
        """Add the observation from another agent's move to the next context."""
        if self._answer is not None and answer.state_key is not None:
            self._answer = replace(self._answer, state_key=answer.state_key)
        if answer.outcome.observation is not None:
            self.add_message(answer.outcome.observation)

    def closing(self, turns: int) -> Position | None:
        """Return the end of the last of `turns` actions, before its answer; None for 0."""
        return self._closings[turns - 1] if turns else None

    @property
    def waits(self) -> bool:
        """Whether messages of the next context are pending: not in the forest yet."""
        return bool(self._pending)

    def flush(self) -> None:
        """Write pending messages to the forest."""
        if not self._pending:
            return
        content = _merged(self._pending)
        answer, self._pending, self._answer = self._answer, [], None
        state = None if answer is None else answer.state_key
        known, tokens = self._rendered
        tokens = tokens if known is content and len(tokens) else self._observed(content)
        self.append(tokens, "observation", state=state, images=images_in(content))
        self.here = self._end(follows_tool=answer is not None and bool(answer.outcome.flags & StepFlag.TOOL_RESULT))
        if answer is not None:
            self._ends.append(self.here)

    def end_of(self, turn: int) -> Position:
        """Return the end of a turn: after its answer, or after the last action."""
        self.flush()
        return self._ends[turn] if turn < len(self._ends) else self._end()

    def position(self, token: int, turns: int) -> Position:
        """Return the position after a number of tokens.

        Raises:
            InvalidInputError: there are fewer tokens, or the position is in a rewritten context or inside images.
        """
        self.flush()
        for begin, end, _ in self._images:
            if begin < token < end:
                raise InvalidInputError(
                    f"branch {self.name}: position token={token} is inside tokens {begin} to {end}, which show images "
                    f"and cannot be split; give {f'{begin}, ' if begin else ''}{end}, or a position in an action"
                )
        first = 0
        for node, end in self._nodes:
            if first < token <= end and node is not None:
                return Position(node, None if token == end else token - first, token, turns)
            first = end
        rewritten = max((end for node, end in self._nodes if node is None), default=0)
        if rewritten == first:
            raise InvalidInputError(
                f"branch {self.name}: position token={token}, but no token has a position yet; await a turn first"
            )
        where = ", after the rewritten context" if rewritten else ""
        raise InvalidInputError(
            f"branch {self.name}: position token={token}; give a whole number from {rewritten + 1} to {first}{where}"
        )

    def context(self, items: Sequence[Content | int], tools: Any) -> NewContext:
        """Return a new context from messages and turns of this path by number.

        Raises:
            InvalidInputError: it does not start and end with a message, two turns have no message between them, or a
                turn is not in the current context.
        """
        self.flush()
        path_tokens = self._forest.tokens(self.handle)
        pieces: list[NDArray[np.int32]] = []
        messages: list[Content] = []
        begins: dict[int, int] = {}
        shown: list[Shown] = []
        for item in [*items, None]:
            if item is not None and not isinstance(item, int):
                messages.append(item)
                continue
            if not messages:
                place = "at the end" if item is None else f"before turn {item}"
                raise InvalidInputError(
                    f"branch {self.name}: rewrite has no message {place}; start and end the context with a message, "
                    "and put a message between two turns"
                )
            content, messages = _merged(messages), []
            begin = sum(map(len, pieces))
            if pieces:
                pieces.append(self._observed(content, pieces[-1]))
            else:
                pieces.append(self._chat.prompt(content, tools=tools) if tools else self._chat.prompt(content))
            if images := images_in(content):
                shown.append((begin, begin + len(pieces[-1]), images))
            if item is not None:
                if item not in self.spans:
                    raise InvalidInputError(
                        f"branch {self.name}: turn {item} is not in the current context; use one of: "
                        f"{sorted(self.spans)}"
                    )
                begin, end = self.spans[item]
                begins[item] = sum(map(len, pieces))
                pieces.append(path_tokens[begin:end])
        return NewContext(np.concatenate(pieces), begins, shown)

    def blobs(self, images: Sequence[Image]) -> list[bytes]:
        """Store images, and return their hashes."""
        return [self._forest.add_blob(image.content) for image in images]

    def rewritten(
        self, length: int, begins: Mapping[int, int], images: Sequence[Shown] = (), tip: int | None = None
    ) -> None:
        """Switch to a new context of `length` tokens.

        Args:
            length: number of tokens of the context.
            begins: index of the first token of each turn in it.
            images: its images, with their token ranges.
            tip: last node of the context; None: not known yet.
        """
        lengths = {turn: end - begin for turn, (begin, end) in self.spans.items()}
        self.spans = {turn: (begin, begin + lengths[turn]) for turn, begin in begins.items()}
        self._pending, self._answer, self.open = [], None, []
        self._nodes, self._images = [(None, length)], list(images)
        self.counted = length
        self.here = replace(self._end(), node=tip)

    def tip(self, group: int) -> int:
        """Return the last node of the path in the forest."""
        frontier = self._forest.running(group)
        return int(frontier.node[frontier.trajectory == self.handle][0])

    def restart(self, answer: StepRecord, acted: int, length: int) -> None:
        """Close the open action; its answer is a new context of `length` tokens."""
        self.close_action(answer, acted)
        self._ends.append(self._end())
        images = images_in(answer.outcome.observation or "")
        self.rewritten(length, {}, [(0, length, images)] if images else [])

    def show(self, tokens: NDArray[np.int32], images: tuple[Image, ...], state: bytes | str | None) -> None:
        """Append the tokens of a new context, with its images."""
        self.append(tokens, "injected", state=state, images=images)
        self.counted = self.length
        self.here = self._end()

    def copy(self, handle: int, place: Position, name: str, begin: Position | None = None) -> TokenPath:
        """Return the path of a fork at a position; `begin` is the start of the action that it may split."""
        path = TokenPath(name, self._forest, self._chat, handle)
        path.first = self.first
        path._plain_chat = self._plain_chat
        path._images = [shown for shown in self._images if shown[0] < place.tokens]
        path._nodes = [(node, end) for node, end in self._nodes if end < place.tokens]
        # Positions inside a rewritten context have no node here.
        node = None if (None, place.tokens) in self._nodes else place.node
        path._nodes.append((node, place.tokens))
        path.counted = place.tokens
        path._ends = self._ends[: place.turns]
        path._closings = self._closings[: place.turns]
        path.spans = {turn: span for turn, span in self.spans.items() if turn < place.turns}
        path.acted = self.acted[: place.turns + 1]
        path.here = place
        if begin is not None and begin.tokens < place.tokens:
            path.here = begin
            path.open = [self._forest.tokens(handle)[begin.tokens : place.tokens]]
        return path

    def new_path(self, handle: int, name: str) -> TokenPath:
        """Return an empty path for a new trajectory that shares no tokens with this one."""
        return TokenPath(name, self._forest, self._chat, handle)

    def node_after(self, token: int) -> tuple[int, int]:
        """Return the node of the token after a position, and the number of the node's tokens before that position.

        Raises:
            InvalidInputError: there is none, or it is in a rewritten context.
        """
        self.flush()
        first = 0
        for node, end in self._nodes:
            if token < end and node is not None:
                return node, token - first
            first = end
        raise InvalidInputError(
            f"branch {self.name} has no tokens after token {token} in its current context; give an earlier position"
        )

    def init_with_prompt(
        self, prompt: int, images: tuple[Image, ...], other: TokenPath, begin: Position, group: int
    ) -> None:
        """Set up this path as another prompt, followed by the part of another path after a position."""
        self._nodes = [(None, prompt)]
        self._images = [(0, prompt, images)] if images else []
        self.append_suffix(other, begin, group)
        first = self._forest.tree(group).path(cast("int", self._nodes[-1][0]))[0]
        self._nodes[0] = (int(first), prompt)
        self.first = int(first)
        self.acted = list(other.acted)

    def append_suffix(self, suffix: TokenPath, start: Position, group: int) -> None:
        """Append the suffix of another path; the episode cannot be replayed to turns before the suffix then."""
        tip = self.tip(group)
        ends = [end for _, end in suffix._nodes if end > start.tokens]
        copies = self._forest.tree(group).path(tip)[-len(ends) :].tolist()
        shift = self.length - start.tokens
        self._nodes += [(node, end + shift) for node, end in zip(copies, ends, strict=True)]
        self._images += [
            (first + shift, end + shift, images) for first, end, images in suffix._images if first >= start.tokens
        ]
        before = self.turns
        self._ends += [
            replace(self.position(end.tokens + shift, before + number), follows_tool=end.follows_tool)
            for number, end in enumerate(suffix._ends[start.turns :], start=1)
        ]
        foreign: list[int | None] = [None] * (before + 1)
        self.acted = foreign + suffix.acted[start.turns + 1 :]
        self.here = self._end()

    def _end(self, *, follows_tool: bool = False) -> Position:
        node, tokens = self._nodes[-1]
        return Position(node, None, tokens, len(self.acted) - 1, follows_tool)


@lru_cache(maxsize=256)
def _limited(sampling: Sampling, max_tokens: int, stops: tuple[int, ...]) -> Sampling:
    stops = tuple(dict.fromkeys((*sampling.stop_token_ids, *stops)))
    return replace(sampling, max_tokens=max_tokens, stop_token_ids=stops)


def _merged(contents: Sequence[Content]) -> Content:
    """Merge several contents into one; a plain text gets the role that its place in the chat implies."""
    return contents[0] if len(contents) == 1 else [message for content in contents for message in as_messages(content)]
