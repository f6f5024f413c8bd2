"""A session of the endpoint continues from its tokens, and renders only new messages."""

import asyncio

import httpx
import numpy as np
import pytest
from chat_gallery import TOOLS, call, gallery_tokenizer, tokenizer_of
from model_templates import FAMILIES

from agentrl_core.agents import Endpoint, EngineUpstream
from agentrl_core.engine import Chat, Scripted
from agentrl_core.engine.chat_messages import plain_message

TURNS = 12


def tokenizer(name):
    if name not in FAMILIES:
        return gallery_tokenizer(name)
    template, special, end = FAMILIES[name]
    return tokenizer_of(template, "<s>", end, special)


class Rendered(EngineUpstream):
    """Counts the messages of each rendered chat."""

    def __init__(self, engine):
        super().__init__(engine)
        self.lengths = []

    async def tokenize(self, messages, tools, options, *, open_turn):
        self.lengths.append(len(messages))
        return await super().tokenize(messages, tools, options, open_turn=open_turn)


async def talked(upstream, tools):
    """Return the record of a session in which every second message answers a call, if there are tools."""
    endpoint = Endpoint(upstream)
    transport = httpx.ASGITransport(app=endpoint.app)
    messages = []
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as agent:
        for turn in range(TURNS):
            last = messages[-1] if messages else {}
            if last.get("tool_calls"):
                content = {"role": "tool", "tool_call_id": last["tool_calls"][0]["id"], "name": "weather"}
                messages.append({**content, "content": f"{turn} degrees"})
            else:
                messages.append({"role": "user", "content": f"question {turn}?"})
            request = {"model": "m", "messages": messages} | ({"tools": tools} if tools else {})
            reply = await agent.post("/s/one/v1/chat/completions", json=request)
            assert reply.status_code == 200, reply.text
            messages.append(reply.json()["choices"][0]["message"])
    return endpoint._recorder.sessions["one"], messages


@pytest.mark.parametrize(
    "name", ["gptoss", "glm4moe", "glm", "late", "one call", "plain", "llama3_1", "gemma4_v5", "qwen2_5"]
)
@pytest.mark.parametrize("with_tools", [False, True])
def test_only_new_messages_are_rendered(name, with_tools):
    tok = tokenizer(name)
    chat = Chat(tok)
    called = plain_message({"role": "assistant", "content": "", "tool_calls": [call()]}, "an answer")
    text = chat._template.written(called) or '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    replies = [text if with_tools and turn % 2 == 0 else "Cold." for turn in range(TURNS)]
    upstream = Rendered(Scripted(tok, replies))
    recorded, messages = asyncio.run(talked(upstream, TOOLS if with_tools else None))
    assert any(message.get("tool_calls") for message in messages) == with_tools
    for turn in range(1, TURNS):
        path, context = recorded.path(turn - 1), recorded.context(turn)
        assert context[: len(path)].tolist() == path.tolist(), "it goes on from what was sampled"
        following = messages[2 * turn]
        expected = chat.observation(following, int(path[-1]))
        np.testing.assert_array_equal(context[len(path) :], expected)
    # Whole chats are compared once for each kind of following message.
    assert max(upstream.lengths[-4:]) <= 3
    assert sum(length > 3 for length in upstream.lengths) <= 4
