"""Programs with concurrent requests inside a collector: sampled concurrently, and stored by their content."""

from __future__ import annotations

import asyncio
import json
import time
from urllib.parse import urlsplit

import openai
import polars as pl
import pytest
from loop_agents import TOKENIZER, Client, RecordingEngine, collected, helping, user
from matrix import shows

from agentrl_core import engine


class Slow(engine.Scripted):
    """Answers requests that contain a given text later, and counts concurrent answers."""

    def __init__(self, replies, slow=""):
        super().__init__(TOKENIZER, replies)
        self.at_once, self.most, self.prompts = 0, 0, []
        self._slow = slow

    async def generate(self, request):
        prompt = TOKENIZER.decode(request.tokens, skip_special_tokens=False)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.2 if self._slow and self._slow in prompt else 0.05)
        self.at_once -= 1
        self.prompts.append(prompt)
        return await super().generate(request)


def by_content(batch):
    """Return all stored data of the rollouts, without times."""
    return pl.DataFrame(batch.nodes).drop("created_us"), pl.DataFrame(batch.steps), pl.DataFrame(batch.trajectories)


@shows("sub-agents (openai SDK)", "in a loop")
@pytest.mark.parametrize("slow", ["", "you are ann", "you are ben"])
def test_rows_of_concurrent_requests_do_not_depend_on_order_or_latency(slow) -> None:
    stored = []
    for order in (("ann", "ben"), ("ben", "ann")):
        model = Slow(lambda tokens: f"said {len(tokens)}", slow)
        batch = collected(helping(order), group_size=1, model=model)
        assert len(model.prompts) == 6
        assert batch.num_draws == 3
        stored.append(by_content(batch))
    for one, other in zip(*stored, strict=True):
        assert one.equals(other), "whoever asked first"


async def posted(base_url, api_key, bodies, hold):
    """Requests written one after the other, while nothing else happens on the loop of the program."""
    place = urlsplit(f"{base_url}/chat/completions")
    connections = [await asyncio.open_connection(place.hostname, place.port) for _ in bodies]
    for (_, writer), body in zip(connections, bodies, strict=True):
        content = json.dumps(body).encode()
        head = f"POST {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {api_key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + content)
        time.sleep(hold)  # noqa: ASYNC251 -- like a machine that is busy now
    replies = []
    for reader, writer in connections:
        replies.append((await reader.read()).decode())
        writer.close()
        await writer.wait_closed()
    return replies


@pytest.mark.parametrize("hold", [0.0, 0.05])
def test_the_first_lane_is_chosen_by_request_content_not_by_arrival(hold) -> None:
    stored = []
    for order in (("ann", "ben", "cleo"), ("cleo", "ben", "ann")):

        async def run(_, base_url, api_key, order=order):
            bodies = [{"messages": [user(f"you are {name}")]} for name in order]
            replies = await posted(base_url, api_key, bodies, hold)
            assert all(reply.startswith("HTTP/1.1 200") for reply in replies), replies
            return 1.0

        model = RecordingEngine(lambda request: f"said {request.seed % 1000}")
        batch = collected(run, group_size=2, model=model)
        assert batch.num_draws == 6
        assert len({TOKENIZER.decode(segment.tokens) for _, segment in model.exchanges}) == 6
        stored.append(by_content(batch))
    for one, other in zip(*stored, strict=True):
        assert one.equals(other), "whoever asked first"


def test_helpers_do_not_wait_for_each_other() -> None:
    async def run(task, base_url, api_key):
        ask = Client(base_url, api_key)
        await asyncio.gather(*(ask([user(f"{task.question} {number}")]) for number in range(8)))
        return 1.0

    model = Slow(lambda _: "said")
    batch = collected(run, group_size=1, model=model)
    assert batch.num_draws == len(model.prompts) == 8
    assert model.most > 1, "several at once"


def test_choices_are_lanes_that_begin_with_the_same_request() -> None:
    model = RecordingEngine(lambda request: f"said {request.seed % 1000}")

    async def run(task, base_url, api_key):
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            reply = await client.chat.completions.create(model="m", messages=[user(task.question)], n=3)
            texts = [choice.message.content for choice in reply.choices]
            assert len(set(texts)) == 3
            chosen = [user(task.question), {"role": "assistant", "content": texts[2]}, user("on")]
            await client.chat.completions.create(model="m", messages=chosen)
        return 1.0

    batch = collected(run, group_size=1, model=model)
    assert batch.num_draws == 3
    assert sorted(pl.DataFrame(batch.steps).group_by("trajectory_id").len()["len"]) == [1, 1, 2]
    prompts = [prompt for prompt, _ in model.exchanges]
    assert prompts[0] == prompts[1] == prompts[2]
    third = TOKENIZER.decode(model.exchanges[2][1].tokens, skip_special_tokens=False)
    assert any(
        prompts[3].startswith(prompts[0] + TOKENIZER.decode(segment.tokens)) for _, segment in model.exchanges[:3]
    )
    assert third


def test_fewer_tokens_and_texts_to_stop_at_are_given() -> None:
    model = RecordingEngine(lambda _: "one two three four five")
    answers = []

    async def run(task, base_url, api_key):
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            for options in ({"max_tokens": 2}, {"stop": ["three"]}, {"max_tokens": 10**6, "temperature": 0.1}):
                messages = [user(f"{task.question} {options}")]
                reply = await client.chat.completions.create(model="m", messages=messages, **options)
                answers.append(reply.choices[0].message.content)
        return 1.0

    collected(run, group_size=1, model=model)
    assert len(model.exchanges[0][1].tokens) == 2
    assert answers[0] == TOKENIZER.decode(model.exchanges[0][1].tokens)
    assert answers[1] == "one two "
    assert answers[2] == "one two three four five"
