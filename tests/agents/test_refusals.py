"""What an endpoint refuses when it arrives, so that no record makes a later commit fail."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from dataclasses import replace

import httpx
import numpy as np
import polars as pl
import pytest
from tool_agents import CALCULATOR, client, endpoint, tokenizer

from agentrl_core import Store
from agentrl_core.agents.loopback import Loopback
from agentrl_core.agents.upstream import Answer
from agentrl_core.exceptions import InvalidInputError

ASK = {"role": "user", "content": "what is 6*7?"}


def deep(levels):
    nested = 1
    for level in range(levels):
        nested = [nested] if level % 2 else {"a": nested}
    return nested


ODD = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1.5,
    -0.0,
    1e39,
    1e300,
    10**30,
    10**400,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    "x",
    "array",
    "\ud800",
    [],
    [None],
    [1],
    ["x"],
    [[]],
    {},
    {"a": None},
    {"type": "text"},
    {"\udfff": 1},
    deep(70),
    deep(200),
]
"""Values of every type of JSON, and some that are none of JSON."""


def served_with(store=None, **options):
    return endpoint(lambda request: f"answer {request.seed}", store=store, **options)


async def post(agent, path, body):
    """Send JSON, NaN and lone surrogates too, as Python writes them."""
    return await agent.post(path, content=json.dumps(body), headers={"content-type": "application/json"})


def committed(served, store):
    """Close what is open, commit it, and the same after a restart; returns the sampled tokens that are stored."""
    for name, session in list(served._recorder.sessions.items()):
        if session.closed is None:
            served.close(name, reward=1.0)
    batch = served.commit()
    assert served.excluded() == []
    assert store.verify() == []
    return None if batch is None else batch.column("token", "token").size


SESSION = {"session_id": "odd", "task_id": "t", "group": "g"}
CLOSE = {"reward": 1.0, "success": True, "status": "finished", "info": {"a": 1}}
PAID = {"reward": 1.0, "turn": 0}


@pytest.mark.parametrize("place", ["open", "close", "reward"])
def test_no_field_of_a_session_makes_a_commit_fail(tmp_path, place) -> None:
    path, body = {
        "open": ("/sessions", SESSION),
        "close": ("/sessions/odd/close", CLOSE),
        "reward": ("/sessions/odd/reward", PAID),
    }[place]
    refused = set()
    with Store.open(tmp_path, sync="never") as store:
        served = served_with(store)

        async def work():
            async with client(served) as agent:
                for field in body:
                    for value in ODD:
                        for name in ("innocent",) if place == "open" else ("innocent", "odd"):
                            assert (await post(agent, "/sessions", {"session_id": name})).status_code == 200
                            await agent.post(f"/s/{name}/v1/chat/completions", json={"messages": [ASK]})
                        reply = await post(agent, path, body | {field: value})
                        assert reply.status_code in (200, 400), (field, value, reply.text)
                        if reply.status_code == 400:
                            message = reply.json()["error"]["message"]
                            assert field in message or "the body" in message, message
                            refused.add(field)
                        elif place == "open":
                            talk = f"{reply.json()['path']}/chat/completions"
                            assert (await agent.post(talk, json={"messages": [ASK]})).status_code == 200
                        assert committed(served, store) > 0, (field, value)

        asyncio.run(work())
        assert refused == set(body)
        assert served.commit() is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reward", True),
        ("reward", float("nan")),
        ("reward", float("inf")),
        ("reward", 1e39),
        ("reward", 10**400),
        ("reward", "much"),
        ("success", 1),
        ("success", "yes"),
        ("status", "done"),
        ("status", None),
        ("status", 3),
        ("info", "solved"),
        ("info", ["solved"]),
        ("info", {"a": deep(70)}),
        ("info", {"a": object()}),
        ("info", {"a": "\ud800"}),
        ("info", {"\ud800": 1}),
        ("info", {"a": "x" * 300_000}),
    ],
)
def test_python_is_refused_what_the_wire_is(field, value) -> None:
    served = served_with()
    served.open("a")
    with pytest.raises(InvalidInputError, match=field):
        served.close("a", **{field: value})
    assert served._recorder.sessions["a"].closed is None


def test_what_a_session_is_closed_with_is_read_back_equal(tmp_path) -> None:
    with Store.open(tmp_path) as store:
        served = served_with(store)
        served.open("a", task="t")
        info = {"steps": np.int64(3), "parts": (1, 2), 7: "seven"}
        served.close("a", reward=np.float32(0.5), success=np.bool_(True), info=info)
        before = served._recorder.sessions["a"].closed
    assert before["info"] == {"steps": 3, "parts": [1, 2], "7": "seven"}
    with Store.open(tmp_path) as store:
        assert served_with(store)._recorder.sessions["a"].closed == before


@pytest.mark.parametrize("value", ["", "\ud800", "x" * 5000, 5, ["t"]])
def test_names_that_cannot_be_kept_are_refused(value) -> None:
    served = served_with()
    for name in ("task", "group"):
        with pytest.raises(InvalidInputError, match=name):
            served.open("a", **{name: value})
    assert served._recorder.sessions == {}


def test_a_group_is_of_one_task() -> None:
    served = served_with()
    served.open("a", task="t1", group="g")
    with pytest.raises(InvalidInputError, match="group is 'g', which has sessions of task 't1' and not of 't2'"):
        served.open("b", task="t2", group="g")
    served.open("b", task="t1", group="g")
    for name in "ab":
        served.close(name)
    served.commit()
    served.open("c", task="t2", group="g")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": [], "logprobs": [], "finish_reason": "abort"}, "outputs is empty"),
        ({"tokens": [-1], "logprobs": [-1.0]}, "token ids are zero or greater"),
        ({"tokens": [2**31], "logprobs": [-1.0]}, "out of bounds"),
        ({"tokens": [1], "logprobs": [0.5]}, "log-prob"),
        ({"tokens": [1, 2], "logprobs": [-1.0]}, "logprobs"),
        ({"message": {"content": "\ud800"}}, "surrogates"),
        ({"message": {"content": float("nan")}}, "not JSON compliant"),
        ({"details": {"content": [float("-inf")]}}, "not JSON compliant"),
        ({"prompt": []}, "prompts is empty"),
        ({"prompt": [-5]}, "token ids are zero or greater"),
    ],
)
def test_an_answer_that_cannot_become_a_row_is_asked_for_again(tmp_path, monkeypatch, change, words) -> None:
    with Store.open(tmp_path) as store:
        served = served_with(store)
        generated, spoils = served.upstream._generated, [True]

        async def spoiled(request, tokens, *, is_chat):
            answer = await generated(request, tokens, is_chat=is_chat)
            if not spoils:
                return answer
            prompt = change.get("prompt", answer.prompt)
            changes = {name: value for name, value in change.items() if name != "prompt"}
            return Answer(prompt, [answer.choices[0], replace(answer.choices[1], **changes)], answer.usage)

        monkeypatch.setattr(served.upstream, "_generated", spoiled)

        async def work():
            async with client(served) as agent:
                body = {"messages": [ASK], "n": 2}
                reply = await agent.post("/s/a/v1/chat/completions", json=body)
                assert reply.status_code == 502, "the clients of OpenAI and Anthropic send it again"
                assert words in reply.json()["error"]["message"]
                assert served._recorder.sessions["a"].turns == []
                spoils.clear()
                again = await agent.post(
                    "/s/a/v1/chat/completions", json=body, headers={"x-stainless-retry-count": "1"}
                )
                assert again.status_code == 200

        asyncio.run(work())
        turns = served._recorder.sessions["a"].turns
        assert len(turns) == 2
        assert committed(served, store) == sum(len(turn.output) for turn in turns)


def test_a_session_that_cannot_become_rows_is_left_out_of_the_batch_and_kept(tmp_path, caplog) -> None:
    with Store.open(tmp_path) as store:
        served = served_with(store)

        async def talk():
            async with client(served) as agent:
                for name in ("good", "bad", "stranger"):
                    await agent.post("/sessions", json={"session_id": name, "task_id": name, "group": name})
                    await agent.post(f"/s/{name}/v1/chat/completions", json={"messages": [ASK]})

        asyncio.run(talk())
        # Records of a version that did not look at them.
        served._recorder._write("bad", "close", {"reward": 1.0, "status": "finished", "info": "solved"})
        served._recorder._write("stranger", "open", {"task": "another", "group": "good", "member": 1})
        served._recorder._write("stranger", "close", {"reward": 1.0, "status": "aborted"})
        served.close("good", reward=1.0)

    with Store.open(tmp_path) as store:
        served = served_with(store)

        async def commit():
            async with client(served) as agent:
                with caplog.at_level(logging.ERROR):
                    reply = await agent.post("/iterations")
                assert reply.status_code == 200
                assert reply.headers["x-excluded-sessions"] == "bad, stranger"
                # The name is free again.
                assert (await agent.post("/s/bad/v1/chat/completions", json={"messages": [ASK]})).status_code == 200
                assert (await agent.post("/sessions/bad/close", json={"reward": 0.5})).status_code == 200
                again = await agent.post("/iterations")
                assert again.status_code == 200
                assert "x-excluded-sessions" not in again.headers
                return (await agent.get("/excluded")).json()["sessions"]

        aside = asyncio.run(commit())
        assert "session bad cannot become rows" in caplog.text
        assert store.iteration == 2
        assert [store.batch(number).num_draws for number in (0, 1)] == [1, 1]
        assert pl.DataFrame(store.metrics).filter(name="sessions.excluded")["value"].to_list() == [2.0, 2.0]
        assert store.verify() == []
    assert [one["session_id"] for one in aside] == ["bad", "stranger"]
    assert "mapping" in aside[0]["reason"]
    assert "'another'" in aside[1]["reason"]
    assert len(aside[0]["entries"]) == 1
    with Store.open(tmp_path) as store:
        served = served_with(store)
        assert served.excluded() == aside
        assert served.commit() is None


def test_a_commit_of_nothing_but_a_spoiled_session_makes_no_iteration(tmp_path) -> None:
    with Store.open(tmp_path) as store:
        served = served_with(store)
        served.open("bad", task="t")
        served._recorder.sessions["bad"].closed = {"status": "finished", "info": [1]}

        async def commit():
            async with client(served) as agent:
                return await agent.post("/iterations")

        reply = asyncio.run(commit())
        assert (reply.status_code, reply.headers["x-excluded-sessions"]) == (204, "bad")
        assert store.iteration == 0


CALL = {"id": "c", "type": "function", "function": {"name": "calculate", "arguments": '{"sum": "1"}'}}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 1, "chat_template_kwargs": {"a": 1}}
OPENAI = SAMPLING | {
    "model": "m",
    "user": "u",
    "n": 1,
    "max_tokens": 5,
    "stop": ["z"],
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "text"},
}
BODIES = {
    "chat/completions": OPENAI
    | {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "u"}], "name": "n"},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "r"},
            {"role": "tool", "content": "1", "tool_call_id": "c"},
        ],
        "tools": [CALCULATOR],
        "tool_choice": {"type": "function", "function": {"name": "calculate"}},
        "parallel_tool_calls": True,
        "max_completion_tokens": 5,
        "logprobs": False,
        "top_logprobs": 1,
        "metadata": {"a": "b"},
    },
    "completions": OPENAI | {"prompt": [1, 2, 3], "logprobs": 1, "echo": False, "suffix": "", "best_of": 1},
    "messages": SAMPLING
    | {
        "model": "m",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "calculate", "input": {"sum": "1"}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "1"}]},
                    {"type": "thinking", "thinking": "t", "signature": "s"},
                ],
            },
        ],
        "stop_sequences": ["z"],
        "tools": [{"name": "calculate", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "calculate"},
        "metadata": {"user_id": "u"},
        "stream": True,
    },
    "responses": SAMPLING
    | {
        "model": "m",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {"type": "reasoning", "summary": [], "content": None},
            {"type": "function_call", "name": "calculate", "arguments": "{}", "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
        ],
        "instructions": "i",
        "max_output_tokens": 5,
        "tools": [{"type": "function", "name": "calculate", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "function", "name": "calculate"},
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "stream": True,
        "metadata": {"a": "b"},
        "previous_response_id": None,
    },
}
LAST = {
    "chat/completions": "data: [DONE]",
    "completions": "data: [DONE]",
    "messages": "event: message_stop",
    "responses": "event: response.incomplete",
}


def places(value, path=()):
    """The places of all values in a body."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


def changed(body, path, value):
    """A body with another value at a place."""
    body = copy.deepcopy(body)
    *before, last = path
    part = body
    for key in before:
        part = part[key]
    part[last] = value
    return body


@pytest.mark.parametrize("dialect", list(BODIES))
def test_a_malformed_body_is_refused_in_the_clients_dialect_before_anything_begins(tmp_path, dialect) -> None:
    body, heard, refused, fields = BODIES[dialect], 0, 0, set()
    with Store.open(tmp_path, sync="never") as store:
        served = served_with(store)

        async def work():
            nonlocal heard, refused
            async with client(served) as agent:
                assert (await post(agent, f"/s/plain/v1/{dialect}", body)).status_code == 200
                for number, (path, value) in enumerate((path, value) for path in places(body) for value in ODD):
                    reply = await post(agent, f"/s/s{number}/v1/{dialect}", changed(body, path, value))
                    where = (path, value, reply.text[:300])
                    assert reply.status_code in (200, 400, 404), where
                    if reply.status_code == 200:
                        heard += 1
                        if reply.headers["content-type"].startswith("text/event-stream"):
                            assert LAST[dialect] in reply.text.replace("response.completed", "response.incomplete"), (
                                where
                            )
                        assert len(served._recorder.sessions[f"s{number}"].turns) == 1, where
                        continue
                    refused += 1
                    fields.add(path[0])
                    error = reply.json()
                    assert error["error"]["message"], where
                    assert (error.get("type") == "error") == (dialect == "messages"), where
                    if reply.status_code == 404:
                        assert path == ("previous_response_id",)
                    known = served._recorder.sessions.get(f"s{number}")
                    assert known is None or not known.turns, where

        asyncio.run(work())
        assert heard > 50
        assert refused > 500
        assert fields == set(body)
        assert committed(served, store) > 0
        assert sum(len(store.batch(number).steps) for number in range(store.iteration)) == heard + 1
    with Store.open(tmp_path) as store:
        assert served_with(store)._recorder.sessions == {}


@pytest.mark.parametrize("dialect", list(BODIES))
def test_inside_a_loop_a_malformed_body_is_refused_too(dialect) -> None:
    loopback, statuses = Loopback(tokenizer()), set()

    def answered(call):
        call.loop.call_soon_threadsafe(call.answer.set_result, "yes")

    _, url, key, _ = loopback.open(answered)

    async def work():
        async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120) as agent:
            for path, value in ((path, value) for path in places(BODIES[dialect]) for value in ODD):
                reply = await post(agent, f"/{dialect}", changed(BODIES[dialect], path, value))
                assert reply.status_code in (200, 400, 404), (path, value, reply.text[:300])
                if reply.status_code != 200:
                    assert reply.json()["error"]["message"]
                elif reply.headers["content-type"].startswith("text/event-stream"):
                    assert LAST[dialect].replace("incomplete", "completed") in reply.text, (path, value)
                statuses.add(reply.status_code)

    try:
        asyncio.run(work())
    finally:
        loopback.close()
    assert {200, 400} <= statuses


def test_weights_have_a_version_that_a_row_holds() -> None:
    served = served_with()

    async def work():
        async with client(served) as agent:
            for value in (10**30, -1, 1.5, True, "3", None, [3]):
                reply = await post(agent, "/weights", {"version": value})
                assert reply.status_code == 400
                assert "version" in reply.json()["error"]["message"]
            assert (await post(agent, "/weights", {"version": 3})).status_code == 200

    asyncio.run(work())
    assert served.policy_version == 3


def test_tokens_are_counted_as_the_request_would_read_them() -> None:
    served = served_with()
    first = {"role": "user", "content": "what is 6*7?"}
    tools = [{"name": "calculate", "description": "does sums", "input_schema": {"type": "object"}}]

    async def work():
        async with client(served) as agent:
            body = {"model": "m", "messages": [first], "system": "be brief", "tools": tools}
            counted = (await agent.post("/s/a/v1/messages/count_tokens", json=body)).json()
            assert served._recorder.sessions == {}, "to count is no request of a session"
            said = (await agent.post("/s/a/v1/messages", json=body | {"max_tokens": 3})).json()
            assert counted == {"input_tokens": said["usage"]["input_tokens"]}
            history = [first, {"role": "assistant", "content": said["content"]}, first]
            counted = (await agent.post("/s/a/v1/messages/count_tokens", json=body | {"messages": history})).json()
            again = (await agent.post("/s/a/v1/messages", json=body | {"messages": history, "max_tokens": 3})).json()
            assert counted == {"input_tokens": again["usage"]["input_tokens"]}
            refused = await agent.post("/s/a/v1/messages/count_tokens", json={"messages": [{"role": "user"}]})
            assert (refused.status_code, refused.json()["type"]) == (400, "error")

    asyncio.run(work())
    assert len(served._recorder.sessions["a"].turns) == 2


@pytest.mark.parametrize("key", ["", "ключ", "a\nb"])
def test_a_key_that_no_client_can_show_is_refused(key) -> None:
    with pytest.raises(InvalidInputError, match="api_key"):
        served_with(api_key=key)
