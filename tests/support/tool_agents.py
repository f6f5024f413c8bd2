"""A scripted model that calls tools, served by the endpoint."""

from __future__ import annotations

import json

import httpx
from templates import QWEN, bytes_tokenizer

from agentrl_core import engine
from agentrl_core.agents import Endpoint, EngineUpstream

HERMES = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*(?:<\|im_end\|>)", "content": "text"},
    },
}
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "does sums",
        "parameters": {"type": "object", "properties": {"sum": {"type": "string"}}, "required": ["sum"]},
    },
}


def call(**arguments):
    """Return the text of a call of the calculator."""
    return f"<tool_call>\n{json.dumps({'name': 'calculate', 'arguments': arguments})}\n</tool_call>"


def tokenizer(template=QWEN):
    built = bytes_tokenizer(template, ["<s>", "<|im_start|>", "<|im_end|>"], "<|im_end|>")
    built.response_template = HERMES
    return built


class Watched(EngineUpstream):
    """An engine that counts requests and records their prompts."""

    def __init__(self, generate, **options):
        super().__init__(generate, **options)
        self.prompts, self.tokenized = [], 0

    async def tokenize(self, *arguments, **options):
        self.tokenized += 1
        return await super().tokenize(*arguments, **options)

    async def _generated(self, request, tokens, *, is_chat):
        self.prompts.append(tokens)
        return await super()._generated(request, tokens, is_chat=is_chat)


def endpoint(replies, *, template=QWEN, store=None, **options):
    """Return an endpoint for a scripted engine."""
    return Endpoint(Watched(engine.Scripted(tokenizer(template), replies)), store=store, **options)


def client(served, **headers):
    """Return a client of it without a socket."""
    transport = httpx.ASGITransport(app=served.app)
    return httpx.AsyncClient(transport=transport, base_url="http://agent", headers=headers)


def decoded(served, tokens):
    return served.upstream._tokenizer.decode(tokens, skip_special_tokens=False)
