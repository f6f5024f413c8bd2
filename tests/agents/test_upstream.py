"""Requirements on a server for trainable answers, tested with servers that violate them."""

from __future__ import annotations

import asyncio
import json
import math

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentrl_core.agents import VllmUpstream
from agentrl_core.exceptions import EngineError


def upstream(*, ids=(5, 6, 7), logprobs=(-0.5, -0.25, 0.0), counted=3, certain=0.0):
    """A server of one answer."""
    content = [{"token": "x", "logprob": value} for value in logprobs]
    choice = {"message": {"content": "x"}, "token_ids": list(ids), "finish_reason": "stop"}
    chat = {"prompt_token_ids": [1, 2], "usage": {"completion_tokens": counted}}
    chat["choices"] = [choice | {"logprobs": {"content": content}}]
    complete = {"text": "x", "token_ids": [9], "prompt_token_ids": [0], "finish_reason": "length"}
    complete["logprobs"] = {"token_logprobs": [certain]}

    def reply(body):
        async def answer(_: Request) -> JSONResponse:
            return JSONResponse(body)

        return answer

    routes = [
        Route("/v1/models", reply({"data": [{"id": "m"}]})),
        Route("/v1/chat/completions", reply(chat), methods=["POST"]),
        Route("/v1/completions", reply({"choices": [complete]}), methods=["POST"]),
    ]
    transport = httpx.ASGITransport(app=Starlette(routes=routes))
    return VllmUpstream("http://server", client=httpx.AsyncClient(transport=transport))


def answer_of(server):
    async def ask():
        try:
            return await server.chat({"messages": [{"role": "user", "content": "?"}]}, None)
        finally:
            await server.close()

    return asyncio.run(ask())


def checked(server):
    async def check():
        try:
            await server.check()
        finally:
            await server.close()

    asyncio.run(check())


def test_a_server_whose_log_probs_are_raw_is_refused() -> None:
    # The only remaining token has the processed log-prob log 1 = 0; raw, a token of probability 0.3 has log 0.3.
    checked(upstream(certain=0.0))
    checked(upstream(certain=-1e-7))
    with pytest.raises(EngineError, match=r"reports log-prob -1.2040 .* --logprobs-mode processed_logprobs"):
        checked(upstream(certain=math.log(0.3)))


def test_ids_that_are_not_all_that_was_sampled_are_refused() -> None:
    assert answer_of(upstream()).choices[0].tokens == [5, 6, 7]
    with pytest.raises(EngineError, match="returned 3 token ids, but reports 4 sampled tokens"):
        answer_of(upstream(counted=4))


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        ((-0.5, -0.25, 0.0), [-0.5, -0.25, 0.0]),
        ((-0.5, None, 0.0), [-0.5, math.nan, 0.0]),
        ((-0.5, -9999.0, 0.0), [-0.5, math.nan, 0.0]),
        ((-0.5, -0.25, 1e-7), [-0.5, -0.25, 0.0]),
        # It is unknown which one is missing: none is used.
        ((-0.5, -0.25), [math.nan] * 3),
    ],
    ids=["all", "a hole", "not computed", "rounded above zero", "compacted"],
)
def test_log_probs_stay_with_their_tokens(logprobs, expected) -> None:
    np.testing.assert_array_equal(answer_of(upstream(logprobs=logprobs)).choices[0].logprobs, expected)


def replied(path, content):
    """A server that answers one path with some bytes."""

    async def answer(request: Request) -> Response:
        body = content if request.url.path == path else b'{"data": [{"id": "m"}]}'
        return Response(body, media_type="application/json")

    routes = [Route("/{rest:path}", answer, methods=["GET", "POST"])]
    transport = httpx.ASGITransport(app=Starlette(routes=routes))
    return VllmUpstream("http://server", client=httpx.AsyncClient(transport=transport))


CHAT = {
    "choices": [
        {
            "message": {"content": "x"},
            "token_ids": [5],
            "finish_reason": "stop",
            "logprobs": {"content": [{"logprob": -0.5}]},
        }
    ],
    "prompt_token_ids": [1],
    "usage": {"completion_tokens": 1},
}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no JSON",
        b"[]",
        b"null",
        b"{}",
        b"\xff",
        json.dumps(CHAT | {"choices": None}).encode(),
        json.dumps(CHAT | {"choices": [None]}).encode(),
        json.dumps(CHAT | {"prompt_token_ids": None}).encode(),
        json.dumps(CHAT | {"prompt_token_ids": ["x"]}).encode(),
        json.dumps(CHAT | {"usage": None}).encode(),
        json.dumps(CHAT | {"choices": [CHAT["choices"][0] | {"token_ids": None}]}).encode(),
        json.dumps(CHAT | {"choices": [CHAT["choices"][0] | {"message": []}]}).encode(),
        json.dumps(CHAT | {"choices": [CHAT["choices"][0] | {"message": {"content": "\ud800"}}]}).encode(),
        json.dumps(
            CHAT | {"choices": [CHAT["choices"][0] | {"logprobs": {"content": [{"logprob": math.nan}]}}]}
        ).encode(),
    ],
)
def test_a_reply_in_another_form_is_the_servers_fault(content) -> None:
    with pytest.raises(EngineError, match="server"):
        answer_of(replied("/v1/chat/completions", content))
    assert answer_of(replied("/v1/chat/completions", json.dumps(CHAT).encode())).choices[0].tokens == [5]
    with pytest.raises(EngineError, match="server"):
        checked(replied("/v1/completions", content))


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("shows", [True, False])
def test_a_server_whose_template_shows_no_tools_is_refused(shows, status) -> None:
    rendered = []

    async def tokenize(request: Request) -> JSONResponse:
        body = await request.json()
        rendered.append(body)
        return JSONResponse({"tokens": [1, 2, 3] if shows and "tools" in body else [1, 2]}, status)

    served = upstream()
    routes = [Route("/tokenize", tokenize, methods=["POST"]), *served._client._transport.app.routes]
    transport = httpx.ASGITransport(app=Starlette(routes=routes))
    served = VllmUpstream("http://server", client=httpx.AsyncClient(transport=transport))
    tools = [{"type": "function", "function": {"name": "add"}}]

    async def ask():
        try:
            for _ in range(2):
                await served.chat({"messages": [{"role": "user", "content": "?"}], "tools": tools}, None)
        finally:
            await served.close()

    if shows or status == 400:  # a question that the template rejects shows nothing about tools
        asyncio.run(ask())
    else:
        with pytest.raises(EngineError, match="shows no tools; describe them in a message"):
            asyncio.run(ask())
    assert len(rendered) == (1 if status == 400 else 2), "it is asked once"
