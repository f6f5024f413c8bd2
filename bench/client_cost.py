"""Tokens per second that one client process of `engine.VllmServer` carries, with entropies and without.

    python bench/client_cost.py [--tokens 64 256 1024] [--responses 256] [--recorded FOLDER]

A real server of vLLM's CPU build generates one response of each length, and its bytes are recorded. Then a process that
only replays these bytes replaces the server, so that the client is the limit. The bench prints bytes per token, CPU
seconds of the client's process per token, and tokens per second of a whole core. Tokens, log-probabilities and
entropies are compared with those parsed by Python's own JSON. With `--recorded`, the responses are kept in the folder
and reused by later runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from common import Bench

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from hand_made import tiny_model
from vllm_server import ARGUMENTS, serving

from agentrl_core import engine, env, warm_start
from agentrl_core.engine import Request, Sampling, Segment, vllm_output

AT_ONCE = 64


def replay(pipe: Connection, responses: Mapping[str, bytes]) -> None:
    """Answer each request with recorded bytes, chosen by path, number of tokens and number of log-probabilities."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            name = self.path
            if body:
                params = json.loads(body)["sampling_params"]
                name = key(params["max_tokens"], params["logprobs"])
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(responses[name])))
            self.end_headers()
            self.wfile.write(responses[name])

        do_GET = do_POST = reply  # noqa: N815 -- the names of the base class

        def log_message(self, *_: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    pipe.send(server.server_address[1])
    server.serve_forever()


def key(tokens: int, logprobs: int) -> str:
    """Return the name of a response."""
    return f"{tokens} tokens, {logprobs} log-probabilities"


def numbers(segment: Segment) -> list[np.ndarray]:
    """Return the columns to compare."""
    entropies = np.zeros(0) if segment.entropies is None else segment.entropies
    return [segment.tokens.astype(float), segment.logprobs, entropies]


def expected(response: bytes, *, entropies: bool) -> list[np.ndarray]:
    """Return the same columns of a response, parsed by Python's own JSON."""
    [choice] = json.loads(response)["choices"]
    content = choice["logprobs"]["content"]
    likeliest = [sorted((one["logprob"] for one in place["top_logprobs"]), reverse=True)[:10] for place in content]
    of_top = np.array([-sum(np.exp(one) * one for one in place) for place in likeliest])
    return [
        np.array(choice["token_ids"], float),
        np.array([place["logprob"] for place in content]),
        of_top if entropies else np.zeros(0),
    ]


def recorded(path: Path, counts: list[int], vocabulary: int) -> None:
    """Write the responses of a real server to files of a folder."""
    longest = str(max(counts) + 64)
    shape = {"hidden_size": 128, "head_dim": 32, "num_hidden_layers": 2, "max_position_embeddings": int(longest)}
    model = tiny_model("qwen3", torch.float32, vocab_size=vocabulary, **shape)
    model.save_pretrained(path / "model")
    arguments = (*ARGUMENTS, "--max-model-len", longest, "--max-num-batched-tokens", longest)
    with serving(path / "model", path / "log", *arguments) as running:
        (path / "models.json").write_bytes(httpx.get(f"{running.url}/v1/models").content)
        probe: dict[str, Any] = {"max_tokens": 1, "top_k": 1, "logprobs": 2, "ignore_eos": True, "detokenize": False}
        requests: list[tuple[str, Any, Any]] = [(key(1, 2), [1, 2, 3], probe)]
        for request in map(request_of, counts):
            for logprobs in (0, vllm_output.columns(request) + 1):
                name = key(request.sampling.max_tokens, logprobs)
                requests.append((name, request.tokens.tolist(), vllm_output.params(request, logprobs)))
        for name, tokens, params in requests:
            payload = {"token_ids": tokens, "sampling_params": params}
            answer = httpx.post(f"{running.url}/inference/v1/generate", json=payload, timeout=600.0).raise_for_status()
            (path / f"{name}.json").write_bytes(answer.content)


def request_of(tokens: int) -> Request:
    """Return the request for *n* tokens."""
    return Request(np.arange(5, 37, dtype=np.int32), tokens, Sampling(max_tokens=tokens))


async def ask(generate: engine.VllmServer, request: Request, count: int) -> list[Segment]:
    """Send a request many times, several at once."""
    segments: list[Segment] = []

    async def one() -> None:
        while len(segments) < count:
            segments.append(await generate.generate(request))

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    return segments


def main() -> None:
    """Record, replay, compare and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--responses", type=int, default=256)
    parser.add_argument("--recorded", type=Path)
    options = parser.parse_args()
    tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"], held_out=8), seed=0)[1]
    requests = {count: request_of(count) for count in options.tokens}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.recorded or Path(temporary)
        folder.mkdir(exist_ok=True)
        if not (folder / "models.json").exists():
            recorded(folder, options.tokens, len(tokenizer))
        responses = {path.stem: path.read_bytes() for path in folder.glob("*.json")}
    responses["/v1/models"] = responses.pop("models")
    pipe, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=replay, args=(theirs, responses), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{pipe.recv()}"
    bench = Bench("client_cost")
    for entropies in (True, False):
        generate = engine.VllmServer(url, tokenizer, entropies=entropies)
        for count, request in requests.items():
            asyncio.run(ask(generate, request, AT_ONCE))  # opens the connections
            begin, busy = time.perf_counter(), time.process_time()
            segments = asyncio.run(ask(generate, request, options.responses))
            busy, seconds = time.process_time() - busy, time.perf_counter() - begin
            response = responses[key(count, vllm_output.columns(request) + 1 if entropies else 0)]
            for one, other in zip(numbers(segments[-1]), expected(response, entropies=entropies), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-5)
            tokens = len(segments) * count
            line = {
                "work": f"responses of {count} tokens, {'with' if entropies else 'without'} entropies",
                "bytes_per_token": round(len(response) / count),
                "client_cpu_us_per_token": round(1e6 * busy / tokens, 2),
                "tokens_per_cpu_second": round(tokens / busy),
                "tokens_per_second": round(tokens / seconds),
            }
            bench.lines.append(line)
            print(
                f"{line['work']:<44} {line['bytes_per_token']:>5} bytes a token "
                f"{line['client_cpu_us_per_token']:>7.2f} us {line['tokens_per_cpu_second']:>9,} tokens per CPU second",
                flush=True,
            )
        generate.close()
    server.terminate()
    bench.write()


if __name__ == "__main__":
    main()
