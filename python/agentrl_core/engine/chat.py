"""Convert chats to tokens and back, with the chat template of a tokenizer."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from agentrl_core.engine.chat_messages import IMAGE, Message, is_text, plain_message, texts_of
from agentrl_core.engine.chat_renderer import ANSWER, QUESTION, VALUE
from agentrl_core.engine.chat_template import RESULT, THOUGHT, Answered, ChatTemplate
from agentrl_core.engine.infer_answer_form import infer_answer_form
from agentrl_core.env.answer_form import AnswerForm
from agentrl_core.env.base import Content
from agentrl_core.env.image import Image, images_in, is_content
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

Tools = Sequence[Mapping[str, Any]]

_REASONED: Message = {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER['content']}"}


class Chat:
    """Converts texts and messages to tokens and back, for one tokenizer with a chat template.

    A conversation is built piece by piece, and no generated token is ever tokenised again:

        prompt(question) + action + observation(result) + action + ...

    An action is the tokens that the model generated, with its stop token. A text takes the role of its position; a
    message has its own (system, user, tool; assistant for examples that were not sampled). The joined pieces equal the
    tokens of the whole conversation rendered at once, with two exceptions: reasoning that the template drops from
    earlier turns (`strips_reasoning_before`), and spaces that it writes before an assistant's text. Content that the
    template leaves out, or renders differently in a longer conversation, is refused at its first use.

    An image (`env.Image`) among the parts of a message becomes the template's placeholder for `{"type": "image"}`,
    which a processor expands to the number of tokens that its model takes. Those tokens are part of the path.

    If a template does not show tools, the system message describes them in the form of Hermes:
    `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Some templates (GLM 4.5) end a turn only when the next
    message begins. The model then generates the first token of that message, and `observation` continues from it.

    Args:
        tokenizer: a Hugging Face tokenizer with a `chat_template`; or the processor of a model that takes images.
        chat_template_kwargs: options of the template, such as `{"enable_thinking": False}`.
        stop_token_ids: further tokens that end a turn, such as `model.generation_config.eos_token_id`; those of a
            `generation_config.json` in the tokenizer's folder are read.

    Raises:
        InvalidInputError: the tokenizer has no chat template, or an option is not the template's.
        UnsupportedError: the template does not render an answer, or no special token ends it.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> chat = engine.Chat(warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)[1])
        >>> chat.prompt("2 + 2 =").tolist() == chat.prompt([{"role": "user", "content": "2 + 2 ="}]).tolist()
        True
        >>> chat.decode(chat.action("<answer>4</answer>"))
        '<answer>4</answer>'
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | ProcessorMixin,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        untyped: Any = tokenizer
        self._processor: Any = untyped if hasattr(untyped, "image_processor") else None
        self.tokenizer: Any = untyped if self._processor is None else self._processor.tokenizer
        self._name = repr(self.tokenizer.name_or_path)
        template = getattr(tokenizer, "chat_template", None)
        self._template = ChatTemplate(self.tokenizer, template, chat_template_kwargs)
        self._options = dict(chat_template_kwargs or {})
        self._others: dict[str, Chat] = {}
        self._observation_role = "tool" if self._renders("tool") else "user"
        self.end_of_turn = self._template.token(self._template.end)
        """The token that ends an assistant's turn."""
        self._ending = [self._template.token(token) for token in self._template.ending]
        self.ends_with_next = self._template.ends_with_next
        """Whether the template writes no end of a turn, so that it ends with the first token of the next message."""
        self.describes_tools = not self._template.shows_tools
        """Whether the system message describes tools, since the template does not render them."""
        self._more_stops = tuple(stop_token_ids)
        ends = [self._template.token(end) for end in self._template.ends]
        stops = dict.fromkeys(
            (self.end_of_turn, *ends, self.tokenizer.eos_token_id, *self._more_stops, *_configured(self.tokenizer))
        )
        self.stop_token_ids: tuple[int, ...] = tuple(token for token in stops if token is not None)
        """The tokens at which a segment must stop: ends of an answer, of a call, or of the text."""
        self.strips_reasoning_before: tuple[str, ...] = tuple(
            role for role in ("tool", "user") if self._renders(role) and self._strips_reasoning(role)
        )
        """The roles of messages after which the template drops `<think>` parts of earlier turns. Training keeps these
        parts, so a program that renders the whole conversation at once shows the model less than in training."""
        # Prompts repeat within a group and short tool results repeat a lot; rendering one takes about 0.1 ms.
        self._cached_prompt = lru_cache(maxsize=4096)(self._prompt)
        self._cached_observation = lru_cache(maxsize=4096)(self._observation)
        self._cached_shown = lru_cache(maxsize=64)(self._shown)
        self._form: AnswerForm | None = None
        self._checked: set[str] = set()
        """The kinds of prompts and observations that have been checked."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._processor or self.tokenizer, self._options, self._more_stops)

    def answer_form(self) -> AnswerForm:
        """Return the form in which the model writes reasoning, answers and calls, found in its chat template.

        Example:
            >>> from agentrl_core import engine, env, warm_start
            >>> chat = engine.Chat(warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)[1])
            >>> chat.answer_form().parse("<think>73 + 15</think>88").answer
            '88'
        """
        if self._form is None:
            self._form = infer_answer_form(self._template)
        return self._form

    def with_options(self, chat_template_kwargs: Mapping[str, Any] | None) -> Chat:
        """Return a chat with further template options; without options, this chat.

        Raises:
            InvalidInputError: an option is not the template's.
        """
        if not chat_template_kwargs:
            return self
        options = {**self._options, **chat_template_kwargs}
        known = _json(options, "chat_template_kwargs")
        if known not in self._others:
            tokenizer = self._processor or self.tokenizer
            self._others[known] = Chat(tokenizer, options, stop_token_ids=self._more_stops)
        return self._others[known]

    def conversation(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools | None = None, *, open_turn: bool = True
    ) -> NDArray[np.int32]:
        """Return the tokens of a whole conversation, rendered by the template at once. int32 [n].

        Args:
            messages: messages in OpenAI's format; images are `env.Image`.
            tools: JSON schemas of the tools.
            open_turn: end with the opening of the assistant's next turn.

        Raises:
            InvalidInputError: a message has an invalid form.
            UnsupportedError: the template refuses a message, or leaves out a content, a call or an image.
        """
        plain = [plain_message(message, f"message {place}") for place, message in enumerate(messages)]
        self._check_images(plain, tools)
        rendered = self._render(plain, tools, open_turn=open_turn)
        self._template.check(plain, rendered, chat="the conversation")
        return self._tokens((rendered, self._encode(rendered)), messages)

    def answers(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools = (), *, chat: str = "chat"
    ) -> list[Answered]:
        """Return the tokens that the model reads and generates at each answer of a chat; see `ChatTemplate.answers`.

        Args:
            messages: messages in OpenAI's format; images are `env.Image`.
            tools: JSON schemas of the tools.
            chat: name of the chat in errors.

        Raises:
            InvalidInputError: a message has an invalid form.
            UnsupportedError: the template refuses a message or leaves out a part of it.
        """
        plain = [plain_message(message, f"{chat}, message {place}") for place, message in enumerate(messages)]
        self._check_images(plain, tools)

        def encode(text: str, after: str, span: slice) -> NDArray[np.int32]:
            return self._tokens((text, self._encode(text, after)), messages[span])

        return self._template.answers(plain, tools, chat=chat, encode=encode)

    def shows_images(self) -> bool:
        """Return whether the template renders images in a user's message."""
        try:
            self._check_prompt([{"role": "user", "content": [{"type": "text", "text": "agentrl part"}, IMAGE]}], None)
        except UnsupportedError:
            return False
        return True

    def prompt(self, content: Content, tools: Tools | None = None) -> NDArray[np.int32]:
        """Return the tokens up to the first action: the messages and the opening of the assistant's turn. int32 [n].

        Args:
            content: a text (as a user's message), a message, or several messages. A message of role `prompt` is the
                whole prompt: its text without the template, or its `tokens`.
            tools: JSON schemas of the tools that the model may call, rendered by the template.

        Raises:
            InvalidInputError: there is no message, a message has no role or text, or a value is not JSON.
            UnsupportedError: the template refuses or ignores a role, the tools or images, or renders them differently
                in a longer conversation.
        """
        prompt = self._cached_prompt(_frozen(content, "user"), _json(list(tools), "tools") if tools else "")
        return self._tokens(prompt, content)

    def observation(self, content: Content, after: int | None = None) -> NDArray[np.int32]:
        """Return the tokens between two actions, after the stop token of the first. int32 [n].

        A text gets the role "tool" if the template renders that role, otherwise "user".

        Args:
            content: a text, a message, or several messages.
            after: the last token of the first action. Templates that write no end of a turn need it, so that the token
                that ended the action is not repeated.

        Raises:
            InvalidInputError: there is no message, a message has no role or text, or a value is not JSON.
            UnsupportedError: the template refuses or ignores a role or images after an assistant's turn.
        """
        ended = str(self.tokenizer.convert_ids_to_tokens(after)) if self.ends_with_next and after is not None else ""
        return self._tokens(self._cached_observation(_frozen(content, self._observation_role), ended), content)

    def action(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of an action written by a script or an expert, with its stop token. int32 [n]."""
        return np.append(self._encode(text), np.asarray(self._ending, np.int32))

    def decode(self, tokens: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Return the text of an action, without the special tokens that end it."""
        ids = np.asarray(tokens, dtype=np.int64).tolist()
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        while ids and ids[-1] in self._ending:
            ids.pop()
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _tokens(
        self, rendered: tuple[str, NDArray[np.int32]], content: Content | Sequence[Mapping[str, Any]]
    ) -> NDArray[np.int32]:
        """Return the tokens of a rendered text; if it shows images, the processor tokenises it."""
        images = () if self._processor is None else images_in(content)
        return self._cached_shown(rendered[0], images).copy() if images else rendered[1].copy()

    def _shown(self, rendered: str, images: tuple[Image, ...]) -> NDArray[np.int32]:
        try:
            from PIL import Image as Picture
        except ImportError as error:
            raise MissingDependencyError("images for a processor need Pillow: pip install pillow") from error
        try:
            pictures: list[Any] = [Picture.open(io.BytesIO(image.content)).convert("RGB") for image in images]
            if "batch_num_images" in getattr(self._processor.image_processor, "model_input_names", ()):
                # Otherwise an image's tokens depend on how many images the messages show.
                pictures = [[picture] for picture in pictures]
            inputs = self._processor(text=[rendered], images=pictures, add_special_tokens=False)
        except Exception as error:  # Pillow and processors raise many types
            raise UnsupportedError(
                f"Chat: the processor refuses the images of the messages ({type(error).__name__}: {error}); give "
                "images of another size or type"
            ) from error
        return np.asarray(inputs["input_ids"][0], dtype=np.int32)

    def _prompt(self, messages: str, tools: str) -> tuple[str, NDArray[np.int32]]:
        conversation, schemas = json.loads(messages), json.loads(tools) if tools else None
        if len(conversation) == 1 and conversation[0]["role"] == "prompt":  # as it is, without the template
            text, tokens = conversation[0]["content"], conversation[0].get("tokens")
            return text, self._encode(text) if tokens is None else np.asarray(tokens, np.int32)
        self._check_prompt(conversation, schemas)
        rendered = self._render(conversation, schemas)
        self._template.check(conversation, rendered, chat="the prompt")
        return rendered, self._encode(rendered)

    def _observation(self, messages: str, ended: str) -> tuple[str, NDArray[np.int32]]:
        following = json.loads(messages)
        rendered = self._following(following, self._check_observation(following))
        self._template.check(following, rendered, chat="the observation")
        rendered = rendered.removeprefix(ended)
        return rendered, self._encode(rendered, "" if self.ends_with_next else self._template.end_in_history)

    def _check_prompt(self, messages: list[Message], tools: Tools | None) -> None:
        """Refuse a prompt if the template leaves out or moves a part, or changes it when the conversation continues."""
        marked = _marked(messages)
        kind = _kind("prompt", messages) + bool(tools) * " with tools"
        if kind in self._checked:
            return
        what = f"a prompt of {_roles(messages)}" + (" with tools" if tools else "")
        begin = self._in_order(marked, what, tools).removesuffix(self._template.opening)
        if tools and begin == self._in_order(marked, what).removesuffix(self._template.opening):
            self._refuse("shows no tools; describe them in a message")
        following: Message = {"role": self._observation_role, "content": RESULT}
        rendered = self._in_order([*marked, ANSWER, following], f"an observation after {what}", tools)
        alone = self._following([following], ANSWER)
        answer = ANSWER["content"]
        if not (rendered.startswith(begin) and self._template.after_answer(rendered, answer) == alone):
            self._refuse(
                f"renders {what} differently when the conversation continues; put all of it into one user message"
            )
        self._checked.add(kind)

    def _check_observation(self, messages: list[Message]) -> Message:
        """Refuse messages that the template leaves out; return the test answer after which it renders them.

        Some templates render tool results only after calls.
        """
        marked, kind = _marked(messages), _kind("observation", messages)
        called = self._template.answer_before(messages)
        if f"{kind} after calls" in self._checked:
            return called
        if kind not in self._checked:
            what = f"an observation of {_roles(messages)}"
            try:
                self._in_order([QUESTION, ANSWER, *marked], what)
            except UnsupportedError as error:
                if not called["tool_calls"]:
                    raise
                try:
                    self._in_order([QUESTION, called, *marked], what)
                except UnsupportedError:
                    raise error from None
                self._checked.add(f"{kind} after calls")
                return called
            self._checked.add(kind)
        return ANSWER

    def _following(self, following: Sequence[Message], answer: Message) -> str:
        """Return the rendered text of messages that follow the end of an answer."""
        rendered = self._render([QUESTION, answer, *following])
        return self._template.after_answer(rendered, VALUE if answer.get("tool_calls") else answer["content"])

    def _in_order(self, marked: list[Message], what: str, tools: Tools | None = None) -> str:
        """Return the rendered conversation after checking that all messages are rendered in order."""
        try:
            rendered = self._render(marked, tools)
        except UnsupportedError as error:
            if error.__cause__ is None:
                raise
            self._refuse(f"refuses {what}: {error.__cause__}; give it as a text", error)
        place = 0
        for message in marked:
            for text in texts_of(message["content"]):
                place = rendered.find(text, place)
                if place < 0:
                    self._refuse(
                        f"leaves out or moves a message of role {message['role']!r} in {what}; give it as a text"
                    )
        for number, message in enumerate(marked):
            if isinstance(message["content"], list) and IMAGE in message["content"]:
                self._check_parts(marked, number, tools)
        return rendered

    def _check_images(self, plain: Sequence[Message], tools: Tools | None) -> None:
        """Refuse images that the template does not render; tests the first message with images of each role."""
        roles = {message["role"]: place for place, message in reversed(list(enumerate(plain))) if not _is_text(message)}
        for role, place in sorted(roles.items(), key=lambda item: item[1]):
            kind = f"images of {role}" + bool(tools) * " with tools"
            if kind not in self._checked:
                self._check_parts(_marked(plain[: place + 1]), place, tools)
                self._checked.add(kind)

    def _check_parts(self, marked: list[Message], number: int, tools: Tools | None) -> None:
        """Refuse a template that prints the parts of a message as raw data, or renders nothing for an image."""

        def rendered(*images: Message) -> str:
            message = {**marked[number], "content": [{"type": "text", "text": "agentrl part"}, *images]}
            return self._render([*marked[:number], message, *marked[number + 1 :]], tools)

        role = marked[number]["role"]
        try:
            parts, with_image = rendered(), rendered(IMAGE)
        except UnsupportedError as error:
            self._refuse(f"refuses a list as the content of a message of role {role!r}; give one text", error)
        if "'type'" in with_image or "agentrl part" not in with_image:
            self._refuse(f"cannot show a list as the content of a message of role {role!r}; give one text")
        if with_image == parts:
            self._refuse(f"shows no images in a message of role {role!r}; describe them in words")

    def _refuse(self, does: str, error: Exception | None = None) -> NoReturn:
        raise UnsupportedError(f"Chat: the template of tokenizer {self._name} {does}") from error

    def _render(self, messages: Sequence[Message], tools: Tools | None = None, *, open_turn: bool = True) -> str:
        return self._template.render(messages, tools or (), open_turn=open_turn)

    def _encode(self, rendered: str, after: str = "") -> NDArray[np.int32]:
        return self._template.encode(rendered, after)

    def _renders(self, role: str) -> bool:
        """Return whether the template renders a message of this role after an assistant's turn."""
        try:
            return RESULT in self._render([QUESTION, ANSWER, {"role": role, "content": RESULT}])
        except UnsupportedError:  # many templates refuse unknown roles
            return False

    def _strips_reasoning(self, role: str) -> bool:
        return THOUGHT not in self._render([QUESTION, _REASONED, {"role": role, "content": RESULT}])


def _rebuilt(tokenizer: Any, options: Mapping[str, Any], stops: Sequence[int]) -> Chat:
    """Return an unpickled chat, with empty caches."""
    return Chat(tokenizer, options, stop_token_ids=stops)


def ends_of(tokenizer: Any, eos_token_id: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return a generation config's end tokens that are special tokens of this tokenizer.

    A config that was not written for the tokenizer has the default of its class, which may be any ordinary token.
    """
    ids = [eos_token_id] if isinstance(eos_token_id, int) else eos_token_id or ()
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    return tuple(int(token) for token in ids if token in special)


def _configured(tokenizer: Any) -> tuple[int, ...]:
    """Return the end tokens from the `generation_config.json` in a tokenizer's folder; none without that file."""
    path = Path(str(tokenizer.name_or_path)) / "generation_config.json"
    if not tokenizer.name_or_path or not path.is_file():
        return ()
    try:
        return ends_of(tokenizer, json.loads(path.read_text(encoding="utf-8")).get("eos_token_id"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InvalidInputError(f"Chat: {path} cannot be read ({error}); correct or remove it") from error


def _json(value: object, name: str) -> str:
    """Return a value as JSON text, with keys in their given order, since templates show it.

    Raises:
        InvalidInputError: the value is not JSON.
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"Chat: {name} are not JSON ({error}); give texts, numbers, True, False, None, and lists and dicts of these"
        ) from error


def _frozen(content: Content, role: str) -> str:
    """Return the checked messages of a content as JSON text, with their parts in the form that templates expect."""
    if isinstance(content, str):
        return _json([{"role": role, "content": content}], "messages")
    messages: object = [content] if isinstance(content, Mapping) else content
    if not isinstance(messages, Sequence) or not messages:
        raise InvalidInputError(f"Chat: the content is {content!r:.80}; give a text, a message or several messages")
    plain = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidInputError(f"Chat: message {index} is {message!r:.80}; give a dict with 'role' and 'content'")
        value = message.get("content")
        if not is_content(value) and not (value is None and message.get("tool_calls")):
            raise InvalidInputError(
                f"Chat: the content of message {index} is {value!r:.80}; give a text, a list of texts and env.Image, "
                "or tool_calls without a content"
            )
        plain.append(plain_message(message, f"Chat: message {index}"))
    return _json(plain, "messages")


def _marked(messages: Sequence[Message]) -> list[Message]:
    """Return messages with their contents replaced by test texts that can be found in a rendered chat."""
    marked: list[Message] = []
    for index, message in enumerate(messages):
        marker: Any = f"agentrl message {index} of many"
        if isinstance(message["content"], list):
            marker = [
                part if part == IMAGE else {"type": "text", "text": f"agentrl part {place} of message {index} of many"}
                for place, part in enumerate(message["content"])
            ]
        marked.append({**message, "content": marker} if message["content"] else message)
    return marked


def _is_text(message: Message) -> bool:
    return is_text(message["content"])


def _kind(place: str, messages: Sequence[Message]) -> str:
    """Return a key that is equal for prompts, or observations, with the same message roles, fields and part types."""
    return json.dumps([place, *([message["role"], *sorted(message), *_types(message)] for message in messages)])


def _types(message: Message) -> list[str]:
    content = message.get("content")
    return [part["type"] for part in content] if isinstance(content, list) else []


def _roles(messages: Sequence[Message]) -> str:
    return ", ".join(repr(message["role"]) for message in messages)
