"""The tokens of a chat, from the chat template of a tokenizer."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from agentrl_core.env.base import Content
from agentrl_core.env.image import Image, images_in, is_said
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

Tools = Sequence[Mapping[str, Any]]
Rendered = Mapping[str, Any]
"""A message as templates take it: its parts, if it has any, are tables with a type."""

# Contents that no template holds, so that they can be found in what it renders.
_QUESTION: Rendered = {"role": "user", "content": "agentrl question"}
_ANSWER: Rendered = {"role": "assistant", "content": "agentrl answer"}
_REASONING = "agentrl reasoning"
_REASONED: Rendered = {"role": "assistant", "content": f"<think>\n{_REASONING}\n</think>\n\n{_ANSWER['content']}"}
_RESULT = "agentrl result"
_IMAGE = {"type": "image"}


class Chat:
    """Text and messages to tokens and back, for one tokenizer with a chat template.

    A conversation is built piece by piece, and no generated token is ever tokenised again:

        prompt(question) + action + observation(result) + action + ...

    where an action is what the model generated, its stop token included. A text takes the role that its place has; a
    message or several say theirs (system, user, tool; an assistant's are examples that were not sampled). The pieces
    joined are the tokens of the whole conversation rendered at once, but for what a template drops of earlier turns
    (`strips_reasoning_before`) and for spaces that it puts in front of an assistant's text. A template that cannot say
    something, or would change what it has said, refuses it at the first use.

    Images (`env.Image`) among the parts of a message are what the template says of `{"type": "image"}`: a placeholder,
    which a processor makes as many tokens of as its model takes for each. Those tokens are part of the path.

    Args:
        tokenizer: a Hugging Face tokenizer with a `chat_template`; or the processor of a model that takes images.

    Raises:
        InvalidInputError: the tokenizer has no chat template.
        UnsupportedError: the template does not end an assistant's turn with a token of its own.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> chat = engine.Chat(warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)[1])
        >>> chat.prompt("2 + 2 =").tolist() == chat.prompt([{"role": "user", "content": "2 + 2 ="}]).tolist()
        True
        >>> chat.decode(chat.action("<answer>4</answer>"))
        '<answer>4</answer>'
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | ProcessorMixin) -> None:
        given: Any = tokenizer
        self._processor: Any = given if hasattr(given, "image_processor") else None
        self.tokenizer: Any = given if self._processor is None else self._processor.tokenizer
        self._name = repr(self.tokenizer.name_or_path)
        self._template = getattr(tokenizer, "chat_template", None) or self.tokenizer.chat_template
        if not self._template:
            raise InvalidInputError(
                f"Chat: the tokenizer {self._name} has no chat_template; "
                f"set tokenizer.chat_template or take the tokenizer of an instruction-tuned model"
            )
        self._observation_role = "tool" if self._renders("tool") else "user"
        self.end_of_turn = self._find_end_of_turn()
        """The token that ends an assistant's turn."""
        self._end = str(self.tokenizer.convert_ids_to_tokens(self.end_of_turn))
        stops = dict.fromkeys((self.end_of_turn, self.tokenizer.eos_token_id))
        self.stop_token_ids: tuple[int, ...] = tuple(token for token in stops if token is not None)
        """What a segment must stop at: the end of the turn, and the end of the text where that is another token."""
        self.strips_reasoning_before: tuple[str, ...] = tuple(
            role for role in ("tool", "user") if self._renders(role) and self._strips_reasoning(role)
        )
        """The roles of messages behind which the template drops `<think>` parts of earlier turns. The pieces keep them:
        another program that renders the conversation at once shows the model less than it was trained on."""
        # Prompts repeat within a group and short tool results repeat a lot; rendering one takes about 0.1 ms.
        self._cached_prompt = lru_cache(maxsize=4096)(self._prompt)
        self._cached_observation = lru_cache(maxsize=4096)(self._observation)
        self._cached_shown = lru_cache(maxsize=64)(self._shown)
        self._checked: set[str] = set()
        """The kinds of prompts and observations that are known to be rendered well."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._processor or self.tokenizer,)  # what it remembers is its own

    def prompt(self, content: Content, tools: Tools | None = None) -> NDArray[np.int32]:
        """The tokens up to the first action, int32 [n]: the messages and the opening of the assistant's turn.

        Args:
            content: a text, which is a user's; a message; or several. One of role `prompt` is all that there is: its
                text without the template, or its `tokens`.
            tools: JSON schemas of the tools that the model may call, shown as the template shows them.

        Raises:
            InvalidInputError: no message, one without a role or a text, or what is not JSON.
            UnsupportedError: the template refuses or ignores a role, the tools or images, or renders them elsewhere
                once the conversation goes on.
        """
        said = self._cached_prompt(_frozen(content, "user"), _json(list(tools), "tools") if tools else "")
        return self._tokens(said, content)

    def observation(self, content: Content) -> NDArray[np.int32]:
        """The tokens between two actions: all from behind the stop token of the first to before the second. int32 [n].

        A text takes the role "tool" where the template renders that role, else "user".

        Raises:
            InvalidInputError: no message, one without a role or a text, or what is not JSON.
            UnsupportedError: the template refuses or ignores a role or images behind an assistant's turn.
        """
        return self._tokens(self._cached_observation(_frozen(content, self._observation_role)), content)

    def action(self, text: str) -> NDArray[np.int32]:
        """The tokens of an action that a script or an expert writes, its stop token included. int32 [n]."""
        return np.append(self._encode(text), np.int32(self.end_of_turn))

    def decode(self, tokens: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """The text of an action, without its stop token."""
        ids = np.asarray(tokens, dtype=np.int64).tolist()
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _tokens(self, said: tuple[str, NDArray[np.int32]], content: Content) -> NDArray[np.int32]:
        """What was rendered as tokens; those of images are the processor's, if there is one."""
        images = () if self._processor is None else images_in(content)
        return self._cached_shown(said[0], images).copy() if images else said[1].copy()

    def _shown(self, rendered: str, images: tuple[Image, ...]) -> NDArray[np.int32]:
        try:
            from PIL import Image as Picture
        except ImportError as error:
            raise MissingDependencyError("images for a processor need Pillow: pip install pillow") from error
        pictures = [Picture.open(io.BytesIO(image.content)).convert("RGB") for image in images]
        made = self._processor(text=[rendered], images=pictures, add_special_tokens=False)
        return np.asarray(made["input_ids"][0], dtype=np.int32)

    def _prompt(self, messages: str, tools: str) -> tuple[str, NDArray[np.int32]]:
        conversation, schemas = json.loads(messages), json.loads(tools) if tools else None
        if len(conversation) == 1 and conversation[0]["role"] == "prompt":  # as it is, without the template
            text, tokens = conversation[0]["content"], conversation[0].get("tokens")
            return text, self._encode(text) if tokens is None else np.asarray(tokens, np.int32)
        self._check_prompt(conversation, schemas)
        rendered = self._render(conversation, schemas)
        return rendered, self._encode(rendered)

    def _observation(self, messages: str) -> tuple[str, NDArray[np.int32]]:
        following = json.loads(messages)
        self._check_observation(following)
        rendered = self._behind_answer(self._render([_QUESTION, _ANSWER, *following]))
        return rendered, self._encode(rendered)

    def _check_prompt(self, messages: list[Rendered], tools: Tools | None) -> None:
        """Refuse what the template leaves out, or puts somewhere else once the conversation goes on."""
        marked = _marked(messages)
        kind = _kind("prompt", messages) + bool(tools) * " with tools"
        if kind in self._checked:
            return
        what = f"a prompt of {_roles(messages)}" + (" with tools" if tools else "")
        begin = self._said(marked, what, tools, open_turn=False)
        if tools and begin == self._said(marked, what, open_turn=False):
            self._refuse("shows no tools; describe them in a message")
        following = {"role": self._observation_role, "content": _RESULT}
        whole = self._said([*marked, _ANSWER, following], f"an observation behind {what}", tools)
        alone = self._behind_answer(self._render([_QUESTION, _ANSWER, following]))
        if not (whole.startswith(begin) and self._behind_answer(whole) == alone):
            self._refuse(f"renders {what} otherwise once the conversation goes on; put all into one text of a user")
        self._checked.add(kind)

    def _check_observation(self, messages: list[Rendered]) -> None:
        marked = _marked(messages)
        kind = _kind("observation", messages)
        if kind not in self._checked:
            what = f"an observation of {_roles(messages)}"
            self._behind_answer(self._said([_QUESTION, _ANSWER, *marked], what))
            self._checked.add(kind)

    def _said(self, marked: list[Rendered], what: str, tools: Tools | None = None, *, open_turn: bool = True) -> str:
        """The conversation rendered, each message in its place."""
        try:
            rendered = self._render(marked, tools, open_turn=open_turn)
        except _template_errors() as error:
            self._refuse(f"refuses {what}: {error}; give it as a text", error)
        place = 0
        for message in marked:
            for text in _texts(message):
                place = rendered.find(text, place)
                if place < 0:
                    self._refuse(
                        f"leaves out or moves a message of role {message['role']!r} in {what}; give it as a text"
                    )
        for number, message in enumerate(marked):
            if isinstance(message.get("content"), list):
                self._check_parts(marked, number, tools, open_turn=open_turn)
        return rendered

    def _check_parts(self, marked: list[Rendered], number: int, tools: Tools | None, *, open_turn: bool) -> None:
        """Refuse a template that prints the parts of a message, or shows nothing for an image."""

        def said(content: Any) -> str:
            one = {**marked[number], "content": content}
            return self._render([*marked[:number], one, *marked[number + 1 :]], tools, open_turn=open_turn)

        role, text = marked[number]["role"], "agentrl part"
        try:
            alone, parts = said(text), said([_part(text)])
            shown = said([_part(text), _IMAGE])
        except _template_errors() as error:
            self._refuse(f"refuses parts in a message of role {role!r}: {error}; give it as a text", error)
        if alone != parts:
            self._refuse(f"does not know parts in a message of role {role!r}; give it as a text")
        if shown == parts:
            self._refuse(f"shows no images in a message of role {role!r}; say in words what they show")

    def _refuse(self, does: str, error: Exception | None = None) -> NoReturn:
        raise UnsupportedError(f"Chat: the template of tokenizer {self._name} {does}") from error

    def _render(self, messages: Sequence[Rendered], tools: Tools | None = None, *, open_turn: bool = True) -> str:
        options = {"tools": list(tools)} if tools else {}
        return str(
            self.tokenizer.apply_chat_template(
                list(messages),
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=open_turn,
                **options,
            )
        )

    def _behind_answer(self, rendered: str) -> str:
        """What follows the end of the marked answer."""
        behind = rendered.index(_ANSWER["content"]) + len(_ANSWER["content"])
        return rendered[rendered.index(self._end, behind) + len(self._end) :]

    def _encode(self, rendered: str) -> NDArray[np.int32]:
        return np.asarray(self.tokenizer(rendered, add_special_tokens=False)["input_ids"], dtype=np.int32)

    def _renders(self, role: str) -> bool:
        """Whether a message of this role may follow an assistant's turn."""
        try:
            return _RESULT in self._render([_QUESTION, _ANSWER, {"role": role, "content": _RESULT}])
        except _template_errors():  # many templates refuse roles that they do not know
            return False

    def _strips_reasoning(self, role: str) -> bool:
        return _REASONING not in self._render([_QUESTION, _REASONED, {"role": role, "content": _RESULT}])

    def _find_end_of_turn(self) -> int:
        rendered = self._render([_QUESTION, _ANSWER], open_turn=False)
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        behind_answer = rendered[rendered.index(_ANSWER["content"]) + len(_ANSWER["content"]) :]
        for token in self._encode(behind_answer).tolist():
            if token in special:
                return int(token)
        raise UnsupportedError(
            f"Chat: the template of tokenizer {self._name} ends an assistant's turn without a special token "
            f"({behind_answer!r}); take a template that writes one"
        )


def _json(value: object, name: str) -> str:
    """The value as JSON, its keys in their own order, which templates show.

    Raises:
        InvalidInputError: it is not JSON.
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"Chat: {name} are not JSON ({error}); give plain values") from error


def _frozen(content: Content, role: str) -> str:
    """The messages of some content, checked, as JSON; its parts are tables with a type, as templates take them."""
    if isinstance(content, str):
        return _json([{"role": role, "content": content}], "messages")
    messages: object = [content] if isinstance(content, Mapping) else content
    if not isinstance(messages, Sequence) or not messages:
        raise InvalidInputError(f"Chat: the content is {content!r}; give a text, a message or several messages")
    plain = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidInputError(f"Chat: message {index} is {message!r}; give a table with 'role' and 'content'")
        said = message.get("content")
        if not is_said(said) and not (said is None and message.get("tool_calls")):
            raise InvalidInputError(
                f"Chat: the content of message {index} is {said!r}; give a text, texts and env.Image in a list, or "
                "tool_calls without one"
            )
        if said is None or isinstance(said, str):
            plain.append(message)
        else:
            plain.append({**message, "content": [_part(part) for part in said]})
    return _json(plain, "messages")


def _part(part: str | Image) -> dict[str, str]:
    return _IMAGE if isinstance(part, Image) else {"type": "text", "text": part}


def _texts(message: Rendered) -> list[str]:
    """The texts of a message, in their order."""
    said = message.get("content") or []
    return [said] if isinstance(said, str) else [part["text"] for part in said if part != _IMAGE]


def _marked(messages: Sequence[Rendered]) -> list[Rendered]:
    """The messages with contents that can be found again."""
    marked: list[Rendered] = []
    for index, message in enumerate(messages):
        said: Any = f"agentrl message {index} of many"
        if isinstance(message.get("content"), list):
            said = [
                part if part == _IMAGE else _part(f"agentrl part {place} of message {index} of many")
                for place, part in enumerate(message["content"])
            ]
        marked.append({**message, "content": said} if message.get("content") else message)
    return marked


def _kind(place: str, messages: Sequence[Rendered]) -> str:
    """What messages are alike to a template: those with the same roles, entries and types of parts."""
    return json.dumps([place, *([message["role"], *sorted(message), *_types(message)] for message in messages)])


def _types(message: Rendered) -> list[str]:
    said = message.get("content")
    return [part["type"] for part in said] if isinstance(said, list) else []


def _roles(messages: Sequence[Rendered]) -> str:
    return ", ".join(repr(message["role"]) for message in messages)


def _template_errors() -> tuple[type[Exception], ...]:
    from jinja2 import TemplateError

    # Templates join, cut and look into what may not be there.
    return TemplateError, TypeError, ValueError, KeyError
