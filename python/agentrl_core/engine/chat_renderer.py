"""Render messages with a tokenizer's chat template, in the form that the template supports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core.engine.chat_messages import Message, is_text, joined
from agentrl_core.engine.tool_description import described, with_written_calls
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tools = Sequence[Mapping[str, Any]]

# Texts that no real chat contains, so that they can be found in a rendered chat.
QUESTION: Message = {"role": "user", "content": "agentrl question"}
ANSWER: Message = {"role": "assistant", "content": "agentrl answer"}
VALUE = "agentrl value"
NAME, ARGUMENT = "agentrl_tool", "agentrl_argument"
_SYSTEM: Message = {"role": "system", "content": "agentrl instruction"}
_PART = "agentrl part"
_TOOL: Message = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "a tool",
        "parameters": {
            "type": "object",
            "properties": {ARGUMENT: {"type": "string", "description": "a text"}},
            "required": [ARGUMENT],
        },
    },
}
# Arguments of `apply_chat_template` itself, which are not options of a template.
_OWN_OPTIONS = frozenset(
    {"conversation", "messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message"}
    | {"tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"}
    | {"return_assistant_tokens_mask", "processor_kwargs"}
)
_UNDEFINED_TOOLS = "{%- set tools = agentrl_undefined -%}"


class ChatRenderer:
    """Renders messages with a chat template; short test chats show which forms of messages the template supports.

    Messages have to be plain (`chat_messages.plain_message`).

    Args:
        tokenizer: a Hugging Face tokenizer.
        template: its chat template, or several by name; None: `tokenizer.chat_template`.
        chat_template_kwargs: options of the template, such as `{"enable_thinking": False}`.

    Raises:
        InvalidInputError: no chat template, or an option that is not the template's.

    Attributes:
        renders_calls: whether the template renders the calls of an answer.
        shows_tools: whether the template renders the schemas of tools.
        source: the text of the template, or of all templates.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str | Mapping[str, str] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer: Any = tokenizer
        self._name = repr(self._tokenizer.name_or_path)
        self._template = template or self._tokenizer.chat_template
        if not self._template:
            raise InvalidInputError(
                f"Chat: the tokenizer {self._name} has no chat_template; "
                "set tokenizer.chat_template or take the tokenizer of an instruction-tuned model"
            )
        self.source = "\n".join([self._template] if isinstance(self._template, str) else self._template.values())
        self._options = checked_options(chat_template_kwargs)
        self._before_template = ""
        self._text_arguments = False
        self._takes_text, self._reads_parts = self._known_contents()
        self.renders_calls = self._known_calls()
        self.shows_tools = NAME in self.tried([QUESTION], [_TOOL])

    def render(self, messages: Sequence[Message], tools: Tools = (), *, open_turn: bool = False) -> str:
        """Return the chat as text; with `open_turn` it ends with the opening of the assistant's next turn.

        As in vLLM, parts of text are joined by newlines if the template does not support parts, and messages of role
        `developer` become system messages if the template does not support that role. If the template does not render
        tools, the system message describes them; if it does not render calls, they are written into the content in the
        described form (`tool_description`).

        Raises:
            UnsupportedError: the template refuses the messages, or renders neither tools nor a system message that
                could describe them.
        """
        chat, schemas = list(messages), list(tools)
        if schemas and not self.shows_tools:
            if not self._shows_system():
                raise UnsupportedError(self.error("shows no tools; describe them in a message"))
            if not self.renders_calls:
                chat = with_written_calls(chat)
            chat, schemas = described(chat, schemas, calls=not self.renders_calls), []
        try:
            return self._rendered(chat, schemas, open_turn=open_turn)
        except _template_errors() as error:
            raise UnsupportedError(self.error(f"refuses the messages ({error}); correct them")) from error

    def tried(self, messages: Sequence[Message], tools: Tools = (), *, open_turn: bool = False) -> str:
        """Return a short test chat as text; empty if the template refuses it."""
        try:
            return self._rendered(messages, tools, open_turn=open_turn)
        except _template_errors():
            return ""

    def error(self, does: str) -> str:
        """Return an error message that names the template."""
        return f"the template of tokenizer {self._name} {does}"

    def _rendered(self, messages: Sequence[Message], tools: Tools = (), *, open_turn: bool = False) -> str:
        template = self._template
        if not isinstance(template, str):
            template = template["tool_use"] if tools and "tool_use" in template else template["default"]
        options = {"tools": list(tools)} if tools else {}
        return str(
            self._tokenizer.apply_chat_template(
                self._readable(messages),
                chat_template=template if tools else self._before_template + template,
                tokenize=False,
                add_generation_prompt=open_turn,
                **options,
                **self._options,
            )
        )

    def _readable(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages in the form that this template supports."""
        readable = [self._with_content(message) for message in self._with_known_roles(messages)]
        if not self._text_arguments:
            return readable
        return [
            {**message, "tool_calls": [_with_text_arguments(call) for call in message["tool_calls"]]}
            if message.get("tool_calls")
            else message
            for message in readable
        ]

    def _with_content(self, message: Message) -> Message:
        content = message["content"]
        if isinstance(content, str):
            wrap = self._reads_parts and not self._takes_text
            return {**message, "content": [{"type": "text", "text": content}]} if wrap else message
        if is_text(content) and (message["role"] == "tool" or not self._reads_parts):
            return self._with_content({**message, "content": joined(content)})
        return message

    def _with_known_roles(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Merge developer and system messages into one system message, like vLLM, if `developer` is unsupported."""
        known = str(self._template)
        if "'developer'" in known or '"developer"' in known or all(each["role"] != "developer" for each in messages):
            return messages
        texts = [joined(each["content"]) for each in messages if each["role"] in ("system", "developer")]
        others = [each for each in messages if each["role"] not in ("system", "developer")]
        return [{"role": "system", "content": "\n\n".join(text for text in texts if text)}, *others]

    def _known_contents(self) -> tuple[bool, bool]:
        """Return whether the template supports contents as texts, and as parts; detect if `tools` must be undefined."""
        self._takes_text, self._reads_parts = True, True
        plain = self.tried([QUESTION])
        if not plain:
            self._before_template = _UNDEFINED_TOOLS
            plain = self.tried([QUESTION])
            if not plain:
                self._before_template = ""
        parts = self.tried([{"role": "user", "content": [{"type": "text", "text": _PART}] * 2}])
        reads = parts.count(_PART) == 2 and "'type'" not in parts and '"type"' not in parts
        return QUESTION["content"] in plain, reads

    def _known_calls(self) -> bool:
        """Return whether the template renders calls. DeepSeek's templates require arguments as JSON text."""
        chat = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [call_of(NAME)]}]
        rendered = self.tried(chat)
        if not rendered:
            self._text_arguments = True
            rendered = self.tried(chat)
            self._text_arguments = bool(rendered)
        return all(piece in rendered for piece in (NAME, ARGUMENT, VALUE))

    def _shows_system(self) -> bool:
        rendered = self.tried([_SYSTEM, QUESTION])
        return _SYSTEM["content"] in rendered and QUESTION["content"] in rendered


def checked_options(chat_template_kwargs: object) -> dict[str, Any]:
    """Return template options after checking them.

    Raises:
        InvalidInputError: the options are not a mapping, or one is an argument of `apply_chat_template` itself.
    """
    if chat_template_kwargs is None:
        return {}
    if not isinstance(chat_template_kwargs, Mapping) or not all(isinstance(name, str) for name in chat_template_kwargs):
        problem = f"is {chat_template_kwargs!r:.80}"
        if isinstance(chat_template_kwargs, Mapping):
            name = next(name for name in chat_template_kwargs if not isinstance(name, str))
            problem = f"has the key {name!r:.40}"
        raise InvalidInputError(
            f"chat_template_kwargs {problem}; give a dict of template options, such as {{'enable_thinking': False}}"
        )
    if reserved := _OWN_OPTIONS & chat_template_kwargs.keys():
        raise InvalidInputError(
            f"chat_template_kwargs has {min(reserved)!r}, an argument of apply_chat_template that the engine sets; "
            "leave it out"
        )
    return dict(chat_template_kwargs)


def call_of(name: str) -> Message:
    """Return a test call of a tool, whose texts can be found in a rendered chat."""
    # Mistral's templates require identifiers of nine letters and digits.
    return {"id": "agentrl01", "type": "function", "function": {"name": name, "arguments": {ARGUMENT: VALUE}}}


def _template_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that templates raise: Jinja's, and those of missing values and wrong types."""
    from jinja2 import TemplateError

    return TemplateError, TypeError, ValueError, LookupError, AttributeError


def _with_text_arguments(call: Message) -> Message:
    function = call["function"]
    if isinstance(function["arguments"], str):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
