"""Images in requests of clients: stored as blobs, sent to the engine, compared in histories, rejected if wrong."""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest
from gallery import picture
from loop_agents import Client
from templates import TEMPLATES, bytes_tokenizer
from tool_agents import client

import agentrl_core as arl
from agentrl_core import Store, engine, env, recipes
from agentrl_core.agents import Endpoint, EngineUpstream
from agentrl_core.agents.history_digest import digests
from agentrl_core.agents.request_images import MOST_IMAGES
from agentrl_core.engine import Request
from agentrl_core.env import Image
from agentrl_core.exceptions import UnsupportedError

IMAGE = 3
CHAT, RESPONSES, MESSAGES = "/s/one/v1/chat/completions", "/s/one/v1/responses", "/s/one/v1/messages"


def url(image: Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(image.content).decode()}"


def shows(*parts: str | Image, role: str = "user", **more: str) -> dict[str, Any]:
    """Return a message of Chat Completions."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": url(part)}}
        for part in parts
    ]
    return {"role": role, "content": content, **more}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


class RequestRecorder:
    """Records the requests to an engine; it answers `a`, `b`, `c`, ..."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __call__(self, *, request: Request) -> str:
        self.requests.append(request)
        assert len(request.images) == request.tokens.tolist().count(IMAGE)
        return chr(ord("a") + len(self.requests) - 1)

    @property
    def images(self) -> list[tuple[Image, ...]]:
        return [request.images for request in self.requests]


SEEING, SPECIAL, END = TEMPLATES["seeing"]
CALLING = SEEING.replace(
    "<|im_end|>\n{% endfor %}",
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}",
)


def served(log: RequestRecorder, store: Store | None = None, **options: Any) -> Endpoint:
    tokenizer = bytes_tokenizer(CALLING, SPECIAL, END)
    return Endpoint(EngineUpstream(engine.Scripted(tokenizer, log)), store=store, **options)


def post(endpoint: Endpoint, *requests: tuple[str, dict[str, Any]], status: int = 200) -> list[dict[str, Any]]:
    async def work() -> list[dict[str, Any]]:
        async with client(endpoint) as agent:
            replies = []
            for path, body in requests:
                reply = await agent.post(path, json={"model": "m", "max_tokens": 20, **body})
                assert reply.status_code == status, reply.text
                replies.append(reply.json())
            return replies

    return asyncio.run(work())


def chat(*messages: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": list(messages), **more}


def contexts(batch: Any) -> list[tuple[list[int], list[bytes]]]:
    """Return tokens and images of each action's context, from the rows of nodes alone."""
    nodes = {row["node_id"]: row for row in pl.DataFrame(batch.nodes).to_dicts()}
    result = []
    for node in nodes.values():
        if node["kind"] != 1:
            continue
        tokens: list[int] = []
        blobs: list[bytes] = []
        above, end = node["parent_id"], node["parent_end"]
        while above is not None:
            row = nodes[above]
            used = row["tokens"] if end is None else row["tokens"][:end]
            tokens = [*used, *tokens]
            blobs = [*((row["blobs"] or []) if IMAGE in used else []), *blobs]
            above, end = row["parent_id"], row["parent_end"]
        result.append((tokens, blobs))
    return result


def hashes(images: tuple[Image, ...]) -> list[bytes]:
    return [image.sha256 for image in images]


def test_every_context_has_the_images_that_the_engine_saw(tmp_path: Path) -> None:
    log = RequestRecorder()
    first, second = shows("Two:", picture(1), picture(2)), shows("And", picture(3))
    with Store.open(tmp_path) as store:
        endpoint = served(log, store)
        post(
            endpoint,
            chat(first),
            chat(first, answer("a"), second),
            chat(first, answer("a"), second, answer("b"), shows("so?")),
        )
        endpoint.close("one", reward=1.0)
        batch = endpoint.commit()
        assert batch is not None
        assert store.verify() == []
        assert store.blob(picture(3).sha256) == picture(3).content
    assert log.images == [tuple(map(picture, numbers)) for numbers in ((1, 2), (1, 2, 3), (1, 2, 3))]
    assert contexts(batch) == [(request.tokens.tolist(), hashes(request.images)) for request in log.requests]
    assert batch.num_draws == 1
    assert len(batch.contexts().draws) == 1, "resent images find the same path"
    assert pl.DataFrame(batch.nodes)["blobs"].drop_nulls().list.len().to_list() == [2, 1], "each image is in one node"
    assert batch.column("token", "token").size == 6


@pytest.mark.parametrize(
    "history",
    [
        [shows("Two:", picture(1), picture(9)), answer("a")],
        [shows("Two:", picture(2), picture(1)), answer("a")],
        [shows("Two:", picture(1)), answer("a"), shows("moved", picture(2)), answer("?")],
        [shows("Two:"), answer("a")],
        [shows(picture(1), "Two:", picture(2)), answer("a")],
    ],
    ids=["another image", "exchanged", "moved", "dropped", "another place"],
)
def test_a_history_with_other_images_is_a_rewritten_context(history: list[dict[str, Any]]) -> None:
    log = RequestRecorder()
    endpoint = served(log)
    first = shows("Two:", picture(1), picture(2))
    post(endpoint, chat(first), chat(*history, shows("now?")))
    endpoint.close("one", reward=1.0)
    batch = endpoint.commit()
    assert batch is not None
    assert contexts(batch) == [(request.tokens.tolist(), hashes(request.images)) for request in log.requests]
    assert len(contexts(batch)) == 2
    lanes = batch.num_draws
    assert len(batch.contexts().draws) == 2, "not the same path"
    assert lanes in (1, 2)
    keys = [row["state_key"] for row in pl.DataFrame(batch.steps).to_dicts()]
    assert len(set(keys)) == 2


def test_sessions_of_one_group_share_a_prompt_only_with_equal_images() -> None:
    log = RequestRecorder()
    endpoint = served(log)
    for name, number in (("one", 1), ("two", 1), ("three", 2)):
        endpoint.open(name, task="t")
        post(endpoint, (f"/s/{name}/v1/chat/completions", {"messages": [shows("what?", picture(number))]}))
        endpoint.close(name, reward=0.0)
    batch = endpoint.commit()
    assert batch is not None
    nodes = pl.DataFrame(batch.nodes)
    assert nodes["blobs"].drop_nulls().to_list() == [[picture(1).sha256], [picture(2).sha256]]
    assert batch.num_draws == 3


def test_choices_and_parallel_conversations_have_their_images() -> None:
    log = RequestRecorder()
    endpoint = served(log)
    first = shows("what?", picture(1))
    post(
        endpoint,
        chat(first, n=2),
        chat(first, answer("b"), shows("more", picture(2))),
        chat(first, answer("a"), shows("go on", picture(3))),
    )
    endpoint.close("one", reward=1.0)
    batch = endpoint.commit()
    assert batch is not None
    assert sorted(contexts(batch)) == sorted((each.tokens.tolist(), hashes(each.images)) for each in log.requests)
    assert batch.num_draws == 2


def test_all_dialects_and_tool_results_take_images() -> None:
    log = RequestRecorder()
    endpoint = served(log)
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(picture(4).content).decode()}
    post(
        endpoint,
        chat(
            shows("x"), {**answer(""), "tool_calls": [call]}, shows("here", picture(1), role="tool", tool_call_id="c")
        ),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url(picture(2))}]}]}),
        (
            RESPONSES,
            {
                "input": [
                    {"role": "user", "content": "x"},
                    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                    {
                        "type": "function_call_output",
                        "call_id": "c",
                        "output": [{"type": "input_image", "image_url": url(picture(3))}],
                    },
                ]
            },
        ),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}),
        (
            MESSAGES,
            {
                "messages": [
                    {"role": "user", "content": "x"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "c",
                                "content": [{"type": "image", "source": source}],
                            }
                        ],
                    },
                ]
            },
        ),
    )
    assert log.images == [(picture(number),) for number in (1, 2, 3, 4, 4)]


def test_responses_go_on_from_a_response_with_images() -> None:
    log = RequestRecorder()
    endpoint = served(log)
    request = {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url(picture(2))}]}]}
    [first] = post(endpoint, (RESPONSES, request))
    post(endpoint, (RESPONSES, {"input": "so?", "previous_response_id": first["id"]}))
    assert log.images == [(picture(2),), (picture(2),)]


def test_a_restarted_endpoint_resumes_with_the_stored_images(tmp_path: Path) -> None:
    log = RequestRecorder()
    first, second = shows("Two:", picture(1), picture(2)), shows("And", picture(3), picture(1))
    with Store.open(tmp_path) as store:
        post(served(log, store), chat(first), chat(first, answer("a"), second))
    with Store.open(tmp_path) as store:
        endpoint = served(log, store)
        post(endpoint, chat(first, answer("a"), second, answer("b"), shows("so?")))
        recorded = sum(
            path.read_bytes().count(base64.b64encode(picture(1).content))
            for path in tmp_path.rglob("*")
            if path.is_file()
        )
        assert recorded == 1, "an image is written once"
        endpoint.close("one", reward=1.0)
        batch = endpoint.commit()
        assert batch is not None
    assert contexts(batch) == [(request.tokens.tolist(), hashes(request.images)) for request in log.requests]
    assert len(batch.contexts().draws) == 1


def bomb() -> bytes:
    """Return the header of a PNG of 40 000 by 40 000 pixels."""
    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def data(raw: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(raw).decode()}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("http://example.org/a.png", "nothing is loaded from files or the network"),
        ("file:///etc/passwd", "nothing is loaded"),
        ("/etc/passwd", "nothing is loaded"),
        ("data:image/png,abc", "is not base64"),
        ("data:image/png;base64,@@@@", "base64 of an image is damaged"),
        (data(b"no picture"), "not a PNG, JPEG, WebP or GIF"),
        (data(picture(1).content[:60]), "damaged PNG"),
        (data(b'<svg xmlns="http://www.w3.org/2000/svg"/>'), "not a PNG, JPEG, WebP or GIF"),
        (data(bomb()), "40000 x 40000 pixels"),
        ("", "nothing is loaded"),
    ],
)
def test_an_invalid_image_is_refused_before_anything_is_recorded(given: str, message: str, tmp_path: Path) -> None:
    log = RequestRecorder()
    with Store.open(tmp_path) as store:
        endpoint = served(log, store)
        wrong = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": given}}]}
        [reply] = post(endpoint, chat(shows("x"), answer("y"), wrong), status=400)
        assert message in reply["error"]["message"]
        assert "messages[2]" in reply["error"]["message"]
        assert not log.requests
        assert not endpoint._sessions
        assert endpoint.commit() is None


def test_too_many_images_are_refused() -> None:
    log = RequestRecorder()
    [reply] = post(served(log), chat(shows(*[picture(1)] * (MOST_IMAGES + 1))), status=400)
    assert f"send at most {MOST_IMAGES}" in reply["error"]["message"]
    post(served(log), chat(shows(*[picture(1)] * MOST_IMAGES)))


def test_images_that_the_engine_or_template_does_not_support_are_refused() -> None:
    blind = engine.Scripted(bytes_tokenizer(*TEMPLATES["seeing"]), RequestRecorder())
    blind.takes_images = False
    [reply] = post(Endpoint(EngineUpstream(blind)), chat(shows("x", picture(1))), status=400)
    assert "which EngineUpstream does not take here; send texts" in reply["error"]["message"]
    unseen = engine.Scripted(bytes_tokenizer(*TEMPLATES["blind"]), RequestRecorder())
    [reply] = post(Endpoint(EngineUpstream(unseen)), chat(shows("x", picture(1))), status=400)
    assert "shows no images in a message of role 'user'" in reply["error"]["message"]


def looped(run: Any, tokenizer: Any, *, takes_images: bool = True) -> tuple[Any, RequestRecorder]:
    """Return a batch of one episode of a program."""
    log = RequestRecorder()
    model = engine.Scripted(bytes_tokenizer(CALLING, SPECIAL, END), log)
    model.takes_images = takes_images
    world = env.Agents(run, [env.Task("t", "?", "f", None)], tokenizer=tokenizer)
    collect = arl.Collector(model, world, recipes.GRPO, task_pool=1, sampling=engine.Sampling(max_tokens=20))
    try:
        return collect(tasks=1, group_size=1), log
    finally:
        collect.close()
        world.close()


def test_programs_in_a_loop_show_images_and_rewrite_them() -> None:
    first, second = shows("Two:", picture(1), picture(2)), shows("And", picture(3))
    chats = [
        [first],
        [first, answer("a"), second],
        [shows("Two:", picture(1), picture(9)), answer("a"), second],
        [shows("Two:", picture(1), picture(9)), answer("a"), second, answer("c"), shows("so?")],
        [shows("a summary"), answer("d"), shows("now", picture(4))],
    ]

    async def run(_: Any, base_url: str, api_key: str) -> float:
        ask = Client(base_url, api_key)
        for messages in chats:
            await ask(messages)
        return 1.0

    batch, log = looped(run, bytes_tokenizer(CALLING, SPECIAL, END))
    assert [tuple(images) for images in log.images] == [
        tuple(map(picture, numbers)) for numbers in ((1, 2), (1, 2, 3), (1, 9, 3), (1, 9, 3), (4,))
    ]
    assert sorted(contexts(batch)) == sorted((each.tokens.tolist(), hashes(each.images)) for each in log.requests)
    assert all(batch.blob(digest) for _, blobs in contexts(batch) for digest in blobs)


def test_a_loop_refuses_images_without_template_or_engine_support() -> None:
    replies: list[int] = []

    async def run(_: Any, base_url: str, api_key: str) -> float:
        async with httpx.AsyncClient(timeout=60, headers={"Authorization": f"Bearer {api_key}"}) as agent:
            for messages in ([shows("x", picture(1))], [shows("x")]):
                body = {"model": "m", "messages": messages}
                replies.append((await agent.post(f"{base_url}/chat/completions", json=body)).status_code)
        return 1.0

    for tokenizer in (None, bytes_tokenizer(*TEMPLATES["blind"])):
        _, log = looped(run, tokenizer)
        assert log.images == [()]
    assert replies == [400, 200] * 2
    with pytest.raises(UnsupportedError, match="does not support them"):
        looped(run, bytes_tokenizer(CALLING, SPECIAL, END), takes_images=False)


def test_an_image_counts_by_its_bytes() -> None:
    def digest(*parts: object) -> str:
        return digests([{"role": "user", "content": list(parts)}], None)[-1]

    text = {"type": "text", "text": "x"}
    assert digest(text, picture(1)) == digest({"type": "input_text", "text": "x"}, Image(picture(1).content))
    assert len({digest(text, picture(1)), digest(text, picture(2)), digest(picture(1), text), digest(text)}) == 4


def test_a_processor_makes_the_tokens_of_an_endpoint() -> None:
    from transformers import CLIPImageProcessorPil, LlavaProcessor

    template, special, end = TEMPLATES["seeing"]
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        bytes_tokenizer(template, special, end),
        patch_size=14,
        vision_feature_select_strategy="full",
        chat_template=template,
    )
    requests: list[Request] = []

    def reply(*, request: Request) -> str:
        requests.append(request)
        return "a"

    endpoint = Endpoint(EngineUpstream(engine.Scripted(processor, reply)))
    first = shows("Two:", picture(1), picture(2))
    post(endpoint, chat(first), chat(first, answer("a"), shows("And", picture(3))))
    assert [request.tokens.tolist().count(IMAGE) for request in requests] == [8, 12]
    assert [len(request.images) for request in requests] == [2, 3]
    endpoint.close("one", reward=1.0)
    batch = endpoint.commit()
    assert batch is not None
    assert contexts(batch) == [(request.tokens.tolist(), hashes(request.images)) for request in requests]
