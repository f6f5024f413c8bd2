"""Malformed bodies of every dialect: rejected in its format before any work, or answered, recorded and committed."""

from __future__ import annotations

import asyncio
import copy

import httpx
import pytest
from odd_values import ODD, committed, post, served_with
from tool_agents import CALCULATOR, client, tokenizer

from agentrl_core import Store
from agentrl_core.agents.in_process_endpoint import InProcessEndpoint

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
    """Yield the paths of all values in a body."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


def changed(body, path, value):
    """Return a body with another value at a path."""
    body = copy.deepcopy(body)
    *before, last = path
    part = body
    for key in before:
        part = part[key]
    part[last] = value
    return body


@pytest.mark.parametrize("dialect", list(BODIES))
def test_a_malformed_body_is_refused_in_the_clients_dialect_before_anything_begins(tmp_path, dialect) -> None:
    body, accepted, refused, fields = BODIES[dialect], 0, 0, set()
    with Store.open(tmp_path, sync="never") as store:
        served = served_with(store)

        async def work():
            nonlocal accepted, refused
            async with client(served) as agent:
                assert (await post(agent, f"/s/plain/v1/{dialect}", body)).status_code == 200
                for number, (path, value) in enumerate((path, value) for path in places(body) for value in ODD):
                    reply = await post(agent, f"/s/s{number}/v1/{dialect}", changed(body, path, value))
                    where = (path, value, reply.text[:300])
                    assert reply.status_code in (200, 400, 404), where
                    if reply.status_code == 200:
                        accepted += 1
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
                    session = served._recorder.sessions.get(f"s{number}")
                    assert session is None or not session.turns, where

        asyncio.run(work())
        assert accepted > 50
        assert refused > 500
        assert fields == set(body)
        assert committed(served, store) > 0
        assert sum(len(store.batch(number).steps) for number in range(store.iteration)) == accepted + 1
    with Store.open(tmp_path) as store:
        assert served_with(store)._recorder.sessions == {}


@pytest.mark.parametrize("dialect", list(BODIES))
def test_inside_a_loop_a_malformed_body_is_refused_too(dialect) -> None:
    loopback, statuses = InProcessEndpoint(tokenizer()), set()

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
