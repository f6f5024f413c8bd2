"""Chats continue in the format of any template, which is found by rendering test chats."""

from __future__ import annotations

import asyncio

import pytest
from templates import TEMPLATES, bytes_tokenizer
from tool_agents import client

from agentrl_core import engine
from agentrl_core.agents import Endpoint, EngineUpstream


async def reply_of(agent, messages):
    reply = await agent.post("/s/one/v1/chat/completions", json={"messages": messages})
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]


@pytest.mark.parametrize("name", ["chatml", "llama", "qwen", "qwen3", "r1", "mistral", "strict"])
def test_a_chat_continues_in_any_template_without_special_code(name) -> None:
    template, special, end = TEMPLATES[name]
    model = engine.Scripted(bytes_tokenizer(template, special, end), ["one", "two", "three"])
    served = Endpoint(EngineUpstream(model))

    async def work():
        async with client(served) as agent:
            messages = [{"role": "user", "content": "what is 6*7?"}]
            for _ in range(3):
                message = await reply_of(agent, messages)
                messages += [message, {"role": "user", "content": "go on"}]
        return messages[:-1]

    messages = asyncio.run(work())
    recorded = served._recorder.sessions["one"]
    turns = recorded.turns
    assert [turn.origin for turn in turns] == [-1, 0, 1]
    for turn in turns[1:]:
        assert turn.shared == len(recorded.path(turn.number - 1)), "all that was sampled is kept"
    rendered = model.chat.tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, tokenize=False)
    shown = model.chat.tokenizer.decode(recorded.context(2), skip_special_tokens=False)
    if name in ("chatml", "llama", "qwen"):  # the others render earlier answers differently from generated ones
        assert shown == rendered
