"""Real, unmodified clients against the endpoint on a real socket: their responses, and the recorded tokens."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack

import anthropic
import openai
import pytest
from matrix import shows
from tool_agents import CALCULATOR, call, endpoint

TOOL_TURNS = [f"let me see {call(sum='6*7')}", "it is 42"]
KEY = "none"


@pytest.fixture
def scripted():
    """A running endpoint with answers in a given order."""
    with ExitStack() as stack:

        def serve(replies, **options):
            served = endpoint(replies, **options)
            return served, stack.enter_context(served.running())

        yield serve


@pytest.fixture
def opened():
    """Close the clients of a test."""
    with ExitStack() as stack:
        yield stack.enter_context


def check_two_turns(served, name="s"):
    """The second turn continues the first, token by token, with the tool's result between them."""
    recorded = served._recorder.sessions[name]
    first, second = recorded.turns
    assert (first.origin, second.origin) == (-1, 0)
    assert second.shared == len(first.added) + len(first.output)
    text = served.upstream._tokenizer.decode(second.added, skip_special_tokens=False)
    assert "<tool_response>\n42\n</tool_response>" in text
    served.close(name, reward=1.0)
    batch = served.commit()
    assert batch.column("token", "token").size == len(first.output) + len(second.output)


@shows("openai SDK", "answers", "streaming", "tools", "history")
@pytest.mark.parametrize("stream", [False, True])
def test_openai_chat(scripted, opened, stream) -> None:
    served, url = scripted(TOOL_TURNS)
    client = opened(openai.OpenAI(base_url=f"{url}/s/s/v1", api_key=KEY))

    def ask(messages):
        if not stream:
            return client.chat.completions.create(model="m", messages=messages, tools=[CALCULATOR]).choices[0].message
        with client.chat.completions.stream(model="m", messages=messages, tools=[CALCULATOR]) as events:
            for _ in events:
                pass
            return events.get_final_completion().choices[0].message

    messages = [{"role": "user", "content": "6*7?"}]
    message = ask(messages)
    assert message.content == "let me see"
    [tool_call] = message.tool_calls
    assert json.loads(tool_call.function.arguments) == {"sum": "6*7"}
    messages += [
        {
            "role": "assistant",
            "content": message.content,
            "tool_calls": [
                {
                    "id": tool_call.id,
                    "type": "function",
                    "function": tool_call.function.model_dump(include={"name", "arguments"}),
                }
            ],
        },
        {"role": "tool", "tool_call_id": tool_call.id, "content": "42"},
    ]
    assert ask(messages).content == "it is 42"
    check_two_turns(served)


@shows("openai SDK, Responses", "answers", "streaming", "tools", "history")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_openai_responses(scripted, opened, stream, named) -> None:
    served, url = scripted(TOOL_TURNS)
    client = opened(openai.OpenAI(base_url=f"{url}/s/s/v1", api_key=KEY))
    tools = [{"type": "function", **CALCULATOR["function"]}]

    def ask(items, **options):
        if not stream:
            return client.responses.create(model="m", input=items, tools=tools, **options)
        with client.responses.stream(model="m", input=items, tools=tools, **options) as events:
            for _ in events:
                pass
            return events.get_final_response()

    question = [{"role": "user", "content": "6*7?"}]
    first = ask(question)
    assert first.output_text == "let me see"
    [tool_call] = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": tool_call.call_id, "output": "42"}
    if named:
        second = ask([result], previous_response_id=first.id)
    else:
        second = ask([*question, *(item.model_dump(exclude_none=True) for item in first.output), result])
    assert second.output_text == "it is 42"
    check_two_turns(served)


@shows("anthropic SDK", "answers", "streaming", "tools", "history")
@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_messages(scripted, opened, stream) -> None:
    served, url = scripted(TOOL_TURNS)
    client = opened(anthropic.Anthropic(base_url=f"{url}/s/s", api_key=KEY))
    function = CALCULATOR["function"]
    tools = [{"name": function["name"], "description": "", "input_schema": function["parameters"]}]

    def ask(messages):
        options = {"model": "m", "max_tokens": 200, "messages": messages, "tools": tools, "system": "be brief"}
        if not stream:
            return client.messages.create(**options)
        with client.messages.stream(**options) as events:
            for _ in events:
                pass
            return events.get_final_message()

    messages = [{"role": "user", "content": "6*7?"}]
    first = ask(messages)
    assert [block.type for block in first.content] == ["text", "tool_use"]
    assert first.stop_reason == "tool_use"
    assert first.content[1].input == {"sum": "6*7"}
    messages += [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": first.content[1].id, "content": "42"}],
        },
    ]
    second = ask(messages)
    assert second.content[0].text == "it is 42"
    assert second.stop_reason == "end_turn"
    check_two_turns(served)


@shows("openai SDK, Completions", "answers", "streaming")
def test_openai_completions(scripted, opened) -> None:
    served, url = scripted(["one", "two"])
    client = opened(openai.OpenAI(base_url=f"{url}/s/s/v1", api_key=KEY))
    assert client.completions.create(model="m", prompt="begin").choices[0].text == "one"
    parts = client.completions.create(model="m", prompt=[5, 6, 7], stream=True)
    assert "".join(part.choices[0].text for part in parts) == "two"
    assert served._recorder.sessions["s"].context(1).tolist() == [5, 6, 7]


@shows("openai SDK", "asked again")
def test_a_request_retried_after_a_client_timeout_is_recorded_once(scripted, opened) -> None:
    served, url = scripted(lambda request: f"answer {request.seed}")
    served.upstream._engine._delay = lambda _: 2.0
    impatient = opened(openai.OpenAI(base_url=f"{url}/s/s/v1", api_key=KEY, timeout=0.1, max_retries=0))
    messages = [{"role": "user", "content": "hello"}]
    with pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(model="m", messages=messages)
    patient = opened(openai.OpenAI(base_url=f"{url}/s/s/v1", api_key=KEY))
    answer = patient.chat.completions.create(model="m", messages=messages).choices[0].message.content
    [turn] = served._recorder.sessions["s"].turns
    assert answer == turn.message["content"]


def test_the_keys_and_errors_of_clients(scripted, opened) -> None:
    served, url = scripted(["yes"], api_key="secret")
    key = served.open("s")["api_key"]
    guess = opened(openai.OpenAI(base_url=f"{url}/v1", api_key="guess", max_retries=0))
    with pytest.raises(openai.AuthenticationError):
        guess.chat.completions.create(model="m", messages=[])
    openai_client = opened(openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0))
    with pytest.raises(openai.BadRequestError, match=r"messages is \[\]; give a list that is not empty"):
        openai_client.chat.completions.create(model="m", messages=[])
    assert (
        openai_client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
        .choices[0]
        .message.content
    )
    anthropic_client = opened(anthropic.Anthropic(base_url=url, api_key="guess", max_retries=0))
    with pytest.raises(anthropic.AuthenticationError):
        anthropic_client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "?"}])


@shows("sub-agents (openai SDK)", "answers", "in parallel", "history")
def test_sub_agents_in_parallel_keep_their_own_histories(scripted) -> None:
    served, url = scripted(lambda request: f"answer {request.seed % 1000}")
    client = openai.AsyncOpenAI(base_url=f"{url}/s/s/v1", api_key=KEY)

    async def sub(name):
        messages = [{"role": "system", "content": f"you are {name}"}, {"role": "user", "content": "go"}]
        for _ in range(3):
            message = (await client.chat.completions.create(model="m", messages=messages)).choices[0].message
            messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": "go on"}]
        return messages

    async def work():
        async with client:
            return await asyncio.gather(sub("a"), sub("b"))

    asyncio.run(work())
    recorded = served._recorder.sessions["s"]
    assert len(recorded.turns) == 6
    chains = {}
    for turn in recorded.turns:
        text = served.upstream._tokenizer.decode(recorded.context(turn.number), skip_special_tokens=False)
        chains.setdefault("you are a" in text, []).append(turn)
    assert [len(turns) for turns in chains.values()] == [3, 3]
    for turns in chains.values():
        assert [turn.origin for turn in turns[1:]] == [turns[0].number, turns[1].number]
    served.close("s", reward=1.0)
    assert served.commit().column("token", "token").size == sum(len(turn.output) for turn in recorded.turns)
