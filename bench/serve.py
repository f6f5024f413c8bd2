"""The recording endpoint: turns a second on one core, latency added, a long session, and many sessions at once.

    python bench/serve.py [--turns 4000] [--long 200] [--sessions 1000]

The endpoint runs in a process of its own, over HTTP, with a store. The engine answers at once with 32 tokens, so that
only the endpoint is measured. Throughput is turns per CPU second, which other load on the machine changes little.
Latency is wall time, printed with the load of the machine. Targets: 2 000 turns a second on one core, 2 ms at the
median, bytes and time of a long session linear in its turns.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Bench

from agentrl_core import Store
from agentrl_core.agents import Endpoint
from agentrl_core.agents.history_digest import Json
from agentrl_core.agents.routes import serving
from agentrl_core.agents.upstream import ChatResponse, ResponseChoice

OUTPUT = 32
END = 1


class Instant:
    """A tokenizer with one token per word of a message, and an end token after each message."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self._number = 0

    async def check(self) -> None:
        """Ignore the template."""

    async def tokenize(
        self, messages: Sequence[Json], tools: Sequence[Json] | None, options: Json | None, *, open_turn: bool
    ) -> list[int]:
        """Return a token for each word."""
        del tools, options
        tokens = []
        for message in messages:
            tokens += [2 + sum(word.encode()) % 997 for word in f"{message['role']} {message['content']}".split()]
            tokens.append(END)
        return [*tokens, 2 + sum(b"assistant") % 997] if open_turn else tokens

    async def chat(self, request: Json, tokens: Sequence[int] | None) -> ChatResponse:
        """An engine whose answers have the same length and always other words."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if tokens is None:
            tokens = await self.tokenize(request["messages"], None, None, open_turn=True)
        self._number += 1
        output = [2 + (self._number * 31 + place) % 997 for place in range(OUTPUT - 1)] + [END]
        message = {"content": f"answer {self._number} of many words that a model says when it is asked"}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": OUTPUT, "total_tokens": len(tokens) + OUTPUT}
        return ChatResponse(list(tokens), [ResponseChoice(message, output, [-0.5] * OUTPUT, "stop")], usage)

    async def complete(self, request: Json) -> ChatResponse:
        """Unused here."""
        raise NotImplementedError

    async def models(self) -> Json:
        """Return None."""
        return {"object": "list", "data": []}

    async def close(self) -> None:
        """Release nothing."""


def served(folder: str, delay: float, pipe: Any) -> None:
    """Process of the endpoint: sends its URL, and its CPU time and bytes on request."""
    with Store.open(folder) as store:
        endpoint = Endpoint(Instant(delay), store=store)
        with serving(endpoint.app) as url:
            pipe.send(url)
            while pipe.recv() == "spent":
                usage = resource.getrusage(resource.RUSAGE_SELF)
                size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
                pipe.send((usage.ru_utime + usage.ru_stime, size))


class Served:
    """An endpoint in a process of its own."""

    def __init__(self, delay: float = 0.0) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=served, args=(self._folder.name, delay, other))
        self._process.start()
        url = self._pipe.recv()
        self.host, self.port = url.removeprefix("http://").split(":")

    def spent(self) -> tuple[float, int]:
        """Return its CPU seconds and the bytes of its store."""
        self._pipe.send("spent")
        return self._pipe.recv()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop the process."""
        self._pipe.send("end")
        self._process.join()
        self._folder.cleanup()


class Agent:
    """A session over one connection that sends the same message again and again."""

    def __init__(self, at: Served, name: str) -> None:
        self._at = at
        self._name = name
        self._messages: list[Json] = [{"role": "user", "content": "please begin with what you have to do here"}]
        self.times: list[float] = []

    async def begin(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(self._at.host, int(self._at.port))

    async def turn(self) -> None:
        """Send a request, and append the answer to the history."""
        body = json.dumps({"model": "m", "messages": self._messages}).encode()
        head = f"POST /s/{self._name}/v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        begin = time.perf_counter()
        self._writer.write(head.encode() + body)
        response_head = await self._reader.readuntil(b"\r\n\r\n")
        assert response_head.startswith(b"HTTP/1.1 200"), response_head
        length = int(response_head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        reply = json.loads(await self._reader.readexactly(length))
        self.times.append(time.perf_counter() - begin)
        message = reply["choices"][0]["message"]
        assert message["content"].startswith("answer ")
        self._messages += [message, {"role": "user", "content": "go on with the next thing"}]

    def end(self) -> None:
        """Close the connection."""
        self._writer.close()


async def talked(at: Served, sessions: int, turns: int, name: str) -> list[float]:
    """Run *n* sessions concurrently; return the seconds of every turn."""
    agents = [Agent(at, f"{name}{number}") for number in range(sessions)]
    for agent in agents:
        await agent.begin()

    async def live(agent: Agent) -> None:
        for _ in range(turns):
            await agent.turn()

    await asyncio.gather(*map(live, agents))
    for agent in agents:
        agent.end()
    return [seconds for agent in agents for seconds in agent.times]


def throughput(turns: int) -> Json:
    """Return turns of ten-turn sessions per CPU second of the endpoint, with sixteen sessions at a time."""
    at = Served()
    asyncio.run(talked(at, 16, 10, "warm"))
    (before, _), begin = at.spent(), time.perf_counter()
    for part in range(max(turns // 160, 1)):
        asyncio.run(talked(at, 16, 10, f"part{part}-"))
    (after, _), seconds = at.spent(), time.perf_counter() - begin
    at.close()
    count = max(turns // 160, 1) * 160
    return {"turns": count, "per core second": count / (after - before), "per second": count / seconds}


def latency() -> Json:
    """Return the latency of a turn for a single agent in ten-turn sessions: the best of ten runs, and the worst."""
    at = Served()
    asyncio.run(talked(at, 1, 20, "warm"))
    medians = []
    for run in range(10):
        times = [second for part in range(10) for second in asyncio.run(talked(at, 1, 10, f"run{run}-{part}-"))]
        medians.append(1e3 * statistics.median(times))
    at.close()
    return {"p50 ms": min(medians), "p50 ms of the worst run": max(medians)}


def long_session(turns: int) -> Json:
    """Return the CPU time and bytes of each quarter of a long session."""
    at = Served()
    asyncio.run(talked(at, 1, 20, "warm"))
    measurements: list[tuple[float, int]] = []

    async def live() -> None:
        agent = Agent(at, "long")
        await agent.begin()
        measurements.append(at.spent())
        for _ in range(4):
            for _ in range(turns // 4):
                await agent.turn()
            measurements.append(at.spent())
        agent.end()

    asyncio.run(live())
    at.close()
    quarters = list(itertools.pairwise(measurements))
    return {
        "turns": turns,
        "ms a turn, by quarter": [1e3 * (b[0] - a[0]) / (turns // 4) for a, b in quarters],
        "bytes a turn, by quarter": [(b[1] - a[1]) / (turns // 4) for a, b in quarters],
    }


def many(sessions: int) -> Json:
    """Run sessions that all wait at once for answers that take a second, three turns each."""
    at = Served(delay=1.0)
    asyncio.run(talked(at, 1, 2, "warm"))
    begin = time.perf_counter()
    times = asyncio.run(talked(at, sessions, 3, "many"))
    seconds = time.perf_counter() - begin
    at.close()
    assert len(times) == 3 * sessions
    return {"sessions": sessions, "turns": len(times), "seconds": seconds}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=4000)
    parser.add_argument("--long", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=1000)
    options = parser.parse_args()
    bench = Bench("serve")
    for work, figures in (
        ("throughput", throughput(options.turns)),
        ("latency", latency()),
        ("long session", long_session(options.long)),
        ("many sessions", many(options.sessions)),
    ):
        bench.lines.append({"work": work, "load": os.getloadavg(), **figures})
        print(work, json.dumps(bench.lines[-1]), flush=True)
    bench.write()


if __name__ == "__main__":
    main()
