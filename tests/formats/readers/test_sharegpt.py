"""ShareGPT, in the variants of LLaMA-Factory, axolotl and Hermes."""

import pytest
from read_files import assistant, call, check_trained, write_lines

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories import read

TOOLS = '[{"type": "function", "function": {"name": "weather", "description": "", "parameters": {"type": "object"}}}]'


def turns(*pairs, **more):
    return {"conversations": [{"from": who, "value": what} for who, what in pairs], **more}


def test_only_answers_are_trained(tmp_path):
    row = turns(
        ("human", "how warm?"), ("gpt", "Cold."), ("human", "And now?"), ("gpt", "Warm."), system="Be brief.", id=7
    )
    [chat] = check_trained(write_lines(tmp_path / "a.jsonl", [row]), [assistant("Cold."), assistant("Warm.")])
    assert chat["messages"][0] == {"role": "system", "content": "Be brief."}
    assert chat["id"] == 7


def test_calls_and_observations_of_llama_factory(tmp_path):
    row = turns(
        ("human", "how warm?"),
        ("function_call", '{"name": "weather", "arguments": {"city": "Oslo"}}'),
        ("observation", "4 degrees"),
        ("gpt", "Cold."),
        tools=TOOLS,
    )
    answers = [assistant("", call(city="Oslo")), assistant("Cold.")]
    [chat] = check_trained(write_lines(tmp_path / "a.jsonl", [row], "\r\n"), answers)
    assert chat["tools"][0]["function"]["name"] == "weather"
    assert [message["role"] for message in chat["messages"]] == ["user", "assistant", "tool", "assistant"]


def test_parallel_calls(tmp_path):
    both = '[{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "time", "arguments": "{}"}]'
    row = turns(
        ("human", "how warm?"), ("function_call", both), ("observation", "4"), ("observation", "9"), tools=TOOLS
    )
    answer = assistant("", call(city="Oslo"), call("time"))
    check_trained(write_lines(tmp_path / "a.jsonl", [row]), [answer], templates=("qwen3", "glm4moe"))


@pytest.mark.parametrize("key", ["weight", "loss", "train"])
def test_answers_without_loss_are_context(key, tmp_path):
    row = turns(("human", "how warm?"), ("gpt", "Hot."), ("human", "Sure?"), ("gpt", "No, cold."))
    row["conversations"][1][key] = False
    row["conversations"][3][key] = True
    check_trained(write_lines(tmp_path / "a.jsonl", [row]), [assistant("No, cold.")], [assistant("Hot.")])


def test_tools_that_the_system_message_shows_are_not_shown_twice():
    """The variant of Hermes."""
    system = "You can call: <tools> [] </tools>"
    row = turns(("system", system), ("human", "how warm?"), ("gpt", "<tool_call>{}</tool_call>"), tools=TOOLS)
    [chat] = read([row])
    assert "tools" not in chat
    assert chat["described_tools"][0]["function"]["name"] == "weather"


def test_odd_values(tmp_path):
    row = {
        "conversations": [
            {"from": "human", "value": None},
            {"role": "assistant", "content": ""},
            {"from": "USER", "value": [{"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]},
            {"from": "chatgpt", "value": "Warm."},
        ],
        "system": "",
        "tools": None,
        "images": [],
    }
    [chat] = check_trained(
        write_lines(tmp_path / "a.jsonl", [row]), [assistant(""), assistant("Warm.")], templates=("qwen3",)
    )
    assert chat == {
        "messages": [
            {"role": "user", "content": ""},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "And\nnow?"},
            {"role": "assistant", "content": "Warm."},
        ]
    }


def test_an_unanswered_last_turn_is_not_trained(tmp_path):
    row = turns(("human", "how warm?"), ("gpt", "Cold."), ("human", "And now?"))
    check_trained(write_lines(tmp_path / "a.jsonl", [row]), [assistant("Cold.")])


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (turns(("oracle", "hm")), InvalidInputError, "message 0: 'from' is 'oracle'; give one of assistant, bard"),
        (turns((None, "hm")), InvalidInputError, "message 0: 'from' is None; give one of"),
        ({"conversations": ["hm"]}, InvalidInputError, "message 0 is 'hm'"),
        ({"conversations": [{"from": "gpt"}]}, InvalidInputError, "message 0 has no 'value'"),
        (turns(("function_call", "weather()")), InvalidInputError, "a function_call is 'weather"),
        (turns(("function_call", '{"arguments": {}}')), InvalidInputError, "has the name None"),
        (turns(("human", "a"), images=["a.png"]), UnsupportedError, "it has media .'images'."),
        (turns(("human", "a"), chosen={"from": "gpt"}), UnsupportedError, "it has a preference"),
        (turns(("human", "a"), kto_tag=False), UnsupportedError, "it has a preference"),
        (turns(("human", "a"), ("gpt", "b"), label=False), UnsupportedError, "its label is false"),
        (turns(("system", "a"), ("gpt", "b"), system="c"), UnsupportedError, "it has a system prompt and another one"),
        (
            {"conversations": [{"from": "gpt", "value": "a", "train_detail": [{"begin_offset": 0}]}]},
            UnsupportedError,
            "a mask of parts of a message",
        ),
        (
            {"conversations": [{"from": "human", "value": "a", "loss": True}]},
            UnsupportedError,
            "not an answer and has loss",
        ),
        (
            {"conversations": [{"from": "human", "value": [{"type": "image"}]}]},
            UnsupportedError,
            "a part of type 'image'",
        ),
    ],
)
def test_invalid_and_unsupported_conversations_are_refused(row, error, message):
    with pytest.raises(error, match=message):
        list(read([row]))
