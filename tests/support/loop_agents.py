"""Agent programs that call a scripted model inside a collector."""

from __future__ import annotations

import asyncio
import os
import sys

import httpx
from tool_agents import CALCULATOR, call, tokenizer

import agentrl_core as arl
from agentrl_core import engine, env, recipes

TASKS = [env.Task(f"{left}*7", f"{left}*7?", "products", str(left * 7)) for left in range(2, 6)]
TOKENIZER = tokenizer()


def scripted_answer(tokens):
    """Return the scripted answer to a prompt: a tool call, then the tool's result; otherwise the number of messages."""
    text = TOKENIZER.decode(tokens, skip_special_tokens=False)
    if "<tool_response>" in text:
        return text.rpartition("<tool_response>\n")[2].partition("\n</tool_response>")[0]
    if "*7?" in text and "calculate" in text:
        return f"let me see {call(sum=text.rpartition('?')[0].rpartition('user')[2].strip())}"
    return f"answer {text.count('<|im_start|>user')}"


class Client:
    """Send a request like the clients of OpenAI."""

    def __init__(self, base_url, api_key):
        self._url = f"{base_url}/chat/completions"
        self._headers = {"Authorization": f"Bearer {api_key}"}

    async def __call__(self, messages, *, tools=None, headers=None):
        async with httpx.AsyncClient(timeout=60, headers=self._headers) as client:
            body = {"model": "m", "messages": messages} | ({"tools": tools} if tools else {})
            reply = await client.post(self._url, json=body, headers=headers)
        if reply.status_code != 200:
            raise RuntimeError(reply.text)
        return reply.json()["choices"][0]["message"]


def user(text):
    return {"role": "user", "content": text}


async def tool_user(task, base_url, api_key):
    """An agent that calls its tool until it answers."""
    ask, messages = Client(base_url, api_key), [user(task.question)]
    while True:
        message = await ask(messages, tools=[CALCULATOR])
        messages.append(message)
        if not message.get("tool_calls"):
            return float(message["content"] == task.payload)
        results = [{"role": "tool", "tool_call_id": tool_call["id"]} for tool_call in message["tool_calls"]]
        messages += [result | {"content": task.payload} for result in results]


def collector(run, *, recipe=recipes.GRPO, speaker=scripted_answer, model=None, **options):
    """Return a collector of a program's episodes."""
    world = env.Agents(run, TASKS, tokenizer=TOKENIZER)
    model = engine.Scripted(TOKENIZER, speaker) if model is None else model
    sampling = engine.Sampling(max_tokens=200)
    return arl.Collector(model, world, recipe, task_pool=len(TASKS), sampling=sampling, **options), world


def collected(run, *, tasks=1, group_size=2, **options):
    """Return a batch of a program's episodes."""
    collect, world = collector(run, **options)
    try:
        return collect(tasks=tasks, group_size=group_size)
    finally:
        collect.close()
        world.close()


def helping(order):
    """Run a leader and two helpers of two turns each, whose requests are concurrent and in a fixed order."""

    async def run(task, base_url, api_key):
        ask = Client(base_url, api_key)

        async def helped(name):
            await asyncio.sleep(0.02 * order.index(name))
            messages = [{"role": "system", "content": f"you are {name}"}, user("do it")]
            messages += [await ask(messages), user("more")]
            return (await ask(messages))["content"]

        main = [{"role": "system", "content": "you lead"}, user(task.question)]
        plan = await ask(main)
        replies = await asyncio.gather(*(helped(name) for name in ("ann", "ben")))
        await ask([*main, plan, user(" ".join(replies))])
        return 0.5

    return run


class RecordingEngine(engine.Scripted):
    """An engine that records its requests and answers."""

    def __init__(self, speaker):
        super().__init__(TOKENIZER, speaker)
        self.exchanges = []

    async def generate(self, request):
        segment = await super().generate(request)
        self.exchanges.append((TOKENIZER.decode(request.tokens, skip_special_tokens=False), segment))
        return segment


class Killed(engine.Scripted):
    """An engine that dies after a number of answers."""

    def __init__(self, answers):
        super().__init__(TOKENIZER, scripted_answer)
        self._remaining = answers

    async def generate(self, request):
        await asyncio.sleep(0)
        if self._remaining == 0:
            os._exit(9)
        self._remaining -= 1
        return await super().generate(request)


if __name__ == "__main__":
    folder, answers, *order = sys.argv[1:]
    helps = helping(order)

    async def one_or_the_other(task, base_url, api_key):
        """Return four tasks: two use a tool, two use helpers."""
        return await (tool_user if task.task_id < "4" else helps)(task, base_url, api_key)

    with arl.Store.open(folder) as store:
        collect, _ = collector(one_or_the_other, store=store, model=Killed(int(answers)))
        collect(tasks=4, group_size=4)
    sys.exit(0)
