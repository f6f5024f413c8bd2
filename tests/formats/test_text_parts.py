"""Contents of messages as lists of text parts."""

import asyncio

import httpx
from chat_templates import CONTENT_ONLY, WITH_CALLS, byte_tokenizer, turn_texts

from agentrl_core import engine
from agentrl_core.agents import Endpoint, EngineUpstream
from agentrl_core.integrations.trajectories import from_chats


def message(role, *texts):
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


def test_contents_in_text_parts_are_read():
    """SWE-agent, OpenHands, LLaMA-Factory and exports of Anthropic write contents as parts."""
    tokenizer = byte_tokenizer(WITH_CALLS)
    chat = {"messages": [message("user", "how warm is it?"), message("assistant", "Cold.")]}
    assert turn_texts(from_chats([chat], tokenizer), tokenizer) == ["Cold.<|im_end|>"]


def test_text_parts_are_joined_by_a_newline_as_by_vllm():
    """Every message of Claude Code has several parts; vLLM 0.32 puts a newline between them."""
    tokenizer = byte_tokenizer(CONTENT_ONLY)
    endpoint = Endpoint(EngineUpstream(engine.Scripted(tokenizer, ["yes"])))
    body = {"model": "m", "messages": [message("user", "<reminder>be brief</reminder>", "is it cold?")]}

    async def post():
        transport = httpx.ASGITransport(app=endpoint.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
            return await client.post("/s/one/v1/chat/completions", json=body)

    assert asyncio.run(post()).status_code == 200
    context = endpoint._recorder.sessions["one"].context(0)
    assert "</reminder>\nis it cold?" in tokenizer.decode(list(context))
