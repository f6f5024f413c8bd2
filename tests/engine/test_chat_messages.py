"""A chat renders messages in the formats of real models' templates, and reports unsupported ones."""

import numpy as np
import pytest
from templates import TEMPLATES, bytes_tokenizer

from agentrl_core.engine import Chat
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "b": 1, "a": 2}}}]
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def chat_of(name):
    return Chat(bytes_tokenizer(*TEMPLATES[name]))


def tool(text, number=0):
    return {"role": "tool", "content": text, "tool_call_id": f"call{number}", "name": "add"}


@pytest.mark.parametrize(
    ("name", "tools"),
    [("chatml", None), ("llama", None), ("llama", TOOLS), ("qwen", None), ("qwen", TOOLS), ("qwen3", TOOLS)],
)
def test_pieces_of_messages_are_the_conversation_rendered_at_once(name, tools):
    chat = chat_of(name)
    rounds = [
        ([SYSTEM, USER], '{"name": "add"}'),
        ([tool("4", 0), tool("5", 1)], "And now?"),
        ([tool("6")], "I think so."),
        ([{"role": "user", "content": "Sure?"}], "Yes."),
    ]
    pieces, conversation = [], []
    for index, (messages, answer) in enumerate(rounds):
        pieces.append(chat.prompt(messages, tools) if index == 0 else chat.observation(messages))
        pieces.append(chat.action(answer))
        conversation += [*messages, {"role": "assistant", "content": answer}]
    rendered = chat.tokenizer.apply_chat_template(conversation, tools=tools, tokenize=True, return_dict=False)
    joined = np.concatenate(pieces).tolist()
    assert joined == rendered[: len(joined)]
    assert len(rendered) - len(joined) <= 1
    if tools:
        assert '"b"' in chat.tokenizer.decode(pieces[0]), "in the order given"


def test_examples_with_tool_calls_may_stand_in_a_prompt():
    chat = chat_of("qwen")
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, tool("4"), USER]
    text = chat.tokenizer.decode(chat.prompt(messages, TOOLS))
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}' in text
    assert text == chat.tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False, add_generation_prompt=True)


def test_a_text_and_its_message_are_the_same():
    chat = chat_of("qwen")
    assert chat.prompt("Hello").tolist() == chat.prompt([{"role": "user", "content": "Hello"}]).tolist()
    assert chat.observation("4").tolist() == chat.observation({"role": "tool", "content": "4"}).tolist()
    strict = chat_of("strict")
    assert strict.observation("4").tolist() == strict.observation({"role": "user", "content": "4"}).tolist()
    assert chat.observation("").tolist() == chat.observation({"role": "tool", "content": ""}).tolist()


@pytest.mark.parametrize(
    ("name", "before"),
    [("chatml", ()), ("llama", ()), ("qwen", ()), ("qwen3", ("user",)), ("r1", ("tool", "user")), ("strict", ())],
)
def test_templates_that_strip_reasoning_are_detected(name, before):
    assert chat_of(name).strips_reasoning_before == before


def test_a_turn_that_the_template_opens_with_reasoning_is_kept_as_it_was_sampled():
    chat = chat_of("r1")
    prompt = chat.prompt("Hello")
    assert chat.tokenizer.decode(prompt).endswith("<|im_start|><think>\n")
    assert chat.tokenizer.decode(chat.observation("4")).endswith("tool 4<|im_start|><think>\n")


@pytest.mark.parametrize(
    ("name", "content", "tools", "message"),
    [
        ("strict", [SYSTEM, USER], None, "refuses a prompt of 'system', 'user': .*give it as a text"),
        ("strict", [USER], TOOLS, "shows no tools"),
        ("silent", [SYSTEM, USER], None, "leaves out or moves a message of role 'system'"),
        (
            "mistral",
            [SYSTEM, USER],
            None,
            "moves a message of role 'user' in an observation after a prompt of 'system', 'user'",
        ),
        ("mistral", [USER], TOOLS, "renders a prompt of 'user' with tools differently when the conversation continues"),
    ],
)
def test_messages_that_a_template_cannot_render_are_refused_each_time(name, content, tools, message):
    chat = chat_of(name)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=message):
            chat.prompt(content, tools)
    assert len(chat.prompt("Hello")) > 5


@pytest.mark.parametrize(("name", "message"), [("strict", "refuses an observation of 'tool'"), ("mistral", "refuses")])
def test_observation_roles_that_a_template_refuses_are_reported(name, message):
    chat = chat_of(name)
    with pytest.raises(UnsupportedError, match=message):
        chat.observation(tool("4"))
    assert "4" in chat.tokenizer.decode(chat.observation("4"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "give a text, a message or several"),
        (7, "the content is 7"),
        ([USER, "Hello"], "message 1 is 'Hello'"),
        ([{"content": "Hello"}], "give a dict with 'role'"),
        ([{"role": "user", "content": [{"type": "image"}]}], "the content of message 0"),
        ([{"role": "assistant"}], "the content of message 0 is None"),
        ([{"role": "user", "content": "x", "name": np.float32(1)}], "messages are not JSON"),
    ],
)
def test_an_invalid_message_is_refused(content, message):
    chat = chat_of("chatml")
    for take in (chat.prompt, chat.observation):
        with pytest.raises(InvalidInputError, match=message):
            take(content)
    with pytest.raises(InvalidInputError, match="tools are not JSON"):
        chat.prompt("Hello", [{"name": object()}])
