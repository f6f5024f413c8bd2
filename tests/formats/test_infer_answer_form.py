"""Reasoning, answer and calls of an action, in the form of each chat template of TRL's wheel."""

import json
import pickle

import pytest
from chat_gallery import NAMES, REFUSED, call, gallery_tokenizer, of_family, tokenizer_of, written_texts
from model_templates import FAMILIES

from agentrl_core.engine import Chat
from agentrl_core.engine.chat_messages import plain_message
from agentrl_core.env import Action, Calculator, ReasoningGym, StepFlag, Task, ToolEnvironment

ARGUMENTS = {"city": "Oslo", "days": 3}
READ = {
    "answer": ("", "Cold.", []),
    "reasoning once": ("It is winter.", "Cold.", []),
    "call": ("", "", [("weather", ARGUMENTS)]),
    "call and text": ("", "I look.", [("weather", ARGUMENTS)]),
    "call and reasoning": ("I need it.", "", [("weather", ARGUMENTS)]),
    "parallel calls": ("", "", [("weather", ARGUMENTS), ("time", {"city": "Rome"})]),
}
# Their templates open a thought, which a text without </think> does not end; gpt-oss parses a text as reasoning.
OPENED = ("deepseek", "exaone", "nemotron", "qwen3_5_think", "qwen3_6", "qwen3_8")
UNFINISHED = {"deepseek_r1": {"answer"}, "deepseekv3": {"answer", "call and text"}, "gptoss": {"call and text"}}


@pytest.fixture(scope="module", params=NAMES)
def family(request):
    return request.param, Chat(gallery_tokenizer(request.param))


def parts(parsed):
    return (
        parsed.reasoning,
        parsed.answer.strip(),
        [(each["function"]["name"], each["function"]["arguments"]) for each in parsed.tool_calls],
    )


def test_the_parts_of_an_answer_are_those_that_were_written(family):
    name, chat = family
    compared = 0
    for kind, expected in READ.items():
        if kind in of_family(name, REFUSED) or kind in UNFINISHED.get(name, ()):
            continue
        tokens = chat.tokenizer(written_texts(name, kind)[0], add_special_tokens=False)["input_ids"]
        action = Action(chat.decode(tokens), form=chat.answer_form)
        if name.startswith(OPENED) and not expected[0] and not action.tool_calls:
            assert (action.reasoning, action.answer) == (str(action).strip(), ""), "an open thought has no answer"
            continue
        assert parts(action) == expected, kind
        compared += 1
    assert compared or name.startswith("deepseek_r1")


def test_tool_call_arguments_round_trip(family):
    name, chat = family
    if "call" in of_family(name, REFUSED) or "calls without tools" in of_family(name, REFUSED):
        return
    # Some of LFM's templates do not escape quotes in texts.
    text = 'A<b>\n  & "c"' if name.startswith("lfm2_2_5") else "A<b>\n  & \"c\" 'd'"
    arguments = {"city": text, "days": 0, "ratio": -2.5, "deep": True}
    message = plain_message(
        {"role": "assistant", "content": "", "tool_calls": [call(**arguments), call("now", 2)]}, "an answer"
    )
    message["tool_calls"][1]["function"]["arguments"] = {}
    for calls in (message["tool_calls"], message["tool_calls"][1:], message["tool_calls"][:1]):
        text = chat._template.written({**message, "tool_calls": calls})
        if not text:  # one call alone
            continue
        parsed_calls = Action(text, form=chat.answer_form).tool_calls
        assert [each["function"] for each in parsed_calls] == [each["function"] for each in calls]


def test_a_schema_keeps_a_text_that_looks_like_a_number():
    chat = Chat(gallery_tokenizer("glm4moe"))
    text = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>42</arg_value>\n</tool_call>"
    action = Action(text, form=chat.answer_form)
    schema = {
        "type": "function",
        "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}},
    }
    assert action.tool_calls[0]["function"]["arguments"] == {"city": 42}
    assert action.parsed([schema]).calls[0]["function"]["arguments"] == {"city": "42"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Cold.", ("", "Cold.", [])),
        ("", ("", "", [])),
        ("<think>\n\n</think>\n\nCold.", ("", "Cold.", [])),
        ("<think>Winter.", ("Winter.", "", [])),
        ("Winter.</think>Cold.", ("Winter.", "Cold.", [])),
        ('<think><tool_call>{"name": "x"}</tool_call></think>4', ('<tool_call>{"name": "x"}</tool_call>', "4", [])),
        ('<tool_call>{"name":"now","arguments":null}</tool_call>', ("", "", [("now", {})])),
        ('<tool_call>{"name":"now","arguments":"{\\"a\\": 1}"}</tool_call>', ("", "", [("now", {"a": 1})])),
        ('a <tool_call>{"name":"x"}</tool_call> b', ("", "a b", [("x", {})])),
        ("1 < 2 and <tool", ("", "1 < 2 and <tool", [])),
    ],
)
def test_a_text_of_a_script_is_in_the_form_of_hermes(text, expected):
    assert parts(Action(text)) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>{</tool_call>", "a call is JSON"),
        ('<tool_call>{"name": "x", "arguments": 3}</tool_call>', "a call is JSON"),
        ('<tool_call>{"name": "x"}', "a <tool_call> is not closed by </tool_call>"),
        ("<tool_call>", "a <tool_call> is not closed by </tool_call>"),
    ],
)
def test_a_malformed_tool_call_holds_its_error(text, error):
    [parsed_call] = Action(f"I look. {text}").tool_calls
    assert parsed_call["function"] == {"name": "", "arguments": parsed_call["function"]["arguments"]}
    assert error in parsed_call["error"]


def test_an_answer_of_gpt_oss_in_the_order_that_the_model_writes():
    chat = Chat(gallery_tokenizer("gptoss"))
    header = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    thought = "<|channel|>analysis<|message|>I need it.<|end|><|start|>assistant"
    for before, reasoning in (("", ""), (thought, "I need it.")):
        action = Action(f'{before}{header}{{"city": "Oslo"}}', form=chat.answer_form)
        assert parts(action) == (reasoning, "", [("weather", {"city": "Oslo"})])


def test_a_json_answer_is_not_a_tool_call():
    chat = Chat(gallery_tokenizer("llama3_1"))
    for text in ('{"city": "Oslo"}', '{"name": "weather"', "{}"):
        assert parts(Action(text, form=chat.answer_form)) == ("", text, [])


def test_the_parts_are_kept_in_a_process_and_not_read_for_nothing():
    chat = Chat(gallery_tokenizer("glm4moe"))
    form_requests = []
    text = written_texts("glm4moe", "call and reasoning")[0].removesuffix("<|observation|>")
    action = Action(text, "length", lambda: form_requests.append(1) or chat.answer_form())
    assert action == text
    assert not form_requests, "the form is asked for with the first part"
    again = pickle.loads(pickle.dumps(action))
    assert (again, again.finish_reason, parts(again)) == (action, "length", parts(action))
    assert parts(again) == READ["call and reasoning"]


@pytest.mark.parametrize(
    "name", ["qwen3", "glm4moe", "gptoss", "llama3_1", "lfm2_v2", "qwen3_5_nothink", "F:plain", "F:kimi"]
)
def test_tools_are_called_in_the_form_of_the_template(name):
    template, special, end = FAMILIES.get(name.removeprefix("F:"), ("", (), ""))
    tok = tokenizer_of(template, "<s>", end, special) if template else gallery_tokenizer(name)
    chat = Chat(tok)
    message = plain_message(
        {"role": "assistant", "content": "", "tool_calls": [call("calculator", expression="73+15")]}, "an answer"
    )
    text = chat._template.written(message)
    if not text:
        function = {"name": "calculator", "arguments": {"expression": "73+15"}}
        text = f"<tool_call>\n{json.dumps(function)}\n</tool_call>"
    world = ToolEnvironment(
        [Task("sum", "73 + 15?", "sums", "88")], [Calculator()], lambda task, answer: answer == task.payload
    )
    episode = world.reset(world.tasks(1)[0], 0)
    outcome = episode.step(Action(text, form=chat.answer_form))
    assert outcome.observation == [{"role": "tool", "name": "calculator", "content": "88"}]
    assert outcome.flags == StepFlag.TOOL_RESULT
    last = chat._template.written({"role": "assistant", "content": "88"})
    assert episode.step(Action(last, form=chat.answer_form)).success


def test_reasoning_gym_ignores_answers_inside_reasoning():
    world = ReasoningGym(["chain_sum"], held_out=0)
    [task] = world.tasks(1)
    right = f"<answer>{task.payload.entry['answer']}</answer>"
    assert world.reset(task, 0).step(Action(f"<think>Or {right}")).flags == StepFlag.FORMAT_ERROR
    assert world.reset(task, 0).step(Action(f"<think>Or <answer>1</answer></think>{right}")).success
    chat = Chat(gallery_tokenizer("gptoss"))
    text = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{right}"
    assert world.reset(task, 0).step(Action(text, form=chat.answer_form)).success


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["gptoss", "gemma4_v5", "glm4moe", "qwen3"])
def test_a_long_degenerate_answer_is_read_in_linear_time(name):
    """A model that repeats newlines; with a search that tries each of them this takes minutes."""
    form = Chat(gallery_tokenizer(name)).answer_form()
    for text in ("\n" * 200_000 + form.thought_end, form.thought_begin * 20_000, form.calls.begin * 20_000):
        assert len(Action(text, form=form).reasoning) <= len(text)
