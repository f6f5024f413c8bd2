"""Tokens a second of `engine.VllmServer` with one and two servers, against the openai client at equal load.

    python bench/serve_engine.py [--groups 16] [--members 8] [--tokens 64] [--runs 5]

The servers are real processes of vLLM's CPU build with a random Qwen3 of four layers, on this machine, with
log-probabilities of the ten likeliest tokens. Both clients send all requests at once, with the same seeds. The openai
client supports one server, so with two servers a client for each gets every other group. The tokens and
log-probabilities of both sides are compared before they are timed. The bench also prints the CPU seconds of client and
servers, which other load on the machine changes less. A server takes longer to write an answer of the token endpoint,
which has every log-probability, than one of `/v1/completions`; a client takes longer to read the latter.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Bench

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from hand_made import tiny_model
from vllm_server import ARGUMENTS, serving

from agentrl_core import engine, env, warm_start
from agentrl_core.engine import Request, Sampling
from agentrl_core.engine.base import generate_all

_LIKELIEST = 10


def made_requests(vocabulary: int, groups: int, members: int, tokens: int) -> list[Request]:
    """Return prompts; members of a group share one."""
    random = np.random.default_rng(0)
    prompts = [random.integers(0, vocabulary, random.integers(20, 60), dtype=np.int32) for _ in range(groups)]
    sampling = Sampling(max_tokens=tokens)
    return [
        Request(prompt, 1000 * group + member, sampling, str(group))
        for group, prompt in enumerate(prompts)
        for member in range(members)
    ]


def by_openai(urls: Sequence[str], requests: Sequence[Request]) -> list[Any]:
    """Return the answers of the openai client, without its retries."""
    from openai import AsyncOpenAI

    async def all_of_them() -> list[Any]:
        clients = [AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) for url in urls]
        answers = await asyncio.gather(
            *(
                clients[int(request.group) % len(clients)].completions.create(
                    model="policy",
                    prompt=request.tokens.tolist(),
                    max_tokens=request.sampling.max_tokens,
                    temperature=request.sampling.temperature,
                    seed=request.seed,
                    logprobs=_LIKELIEST + 1,
                    extra_body={"return_token_ids": True, "return_tokens_as_token_ids": True, "ignore_eos": True},
                )
                for request in requests
            )
        )
        for client in clients:
            await client.close()
        return [answer.choices[0] for answer in answers]

    return asyncio.run(all_of_them())


def numbers(answers: Sequence[Any]) -> np.ndarray:
    """Return tokens and log-probabilities of the answers of either client."""
    rows = []
    for answer in answers:
        ours = isinstance(answer, engine.Segment)
        tokens = answer.tokens if ours else answer.token_ids
        rows.append(np.stack([np.asarray(tokens, float), answer.logprobs if ours else answer.logprobs.token_logprobs]))
    return np.stack(rows)


def of_groups(groups: Sequence[int]) -> float:
    """Return the CPU seconds of some process groups."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += (int(fields[11]) + int(fields[12])) * (int(fields[2]) in groups)
    return ticks / os.sysconf("SC_CLK_TCK")


def spent(call: Callable[[], object], groups: Sequence[int]) -> tuple[float, float]:
    """Return the CPU seconds of a call in this process and in some process groups."""
    started, others = time.process_time(), of_groups(groups)
    call()
    return round(time.process_time() - started, 3), round(of_groups(groups) - others, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"], held_out=8), seed=0)[1]
    shape = {"hidden_size": 128, "head_dim": 32, "num_hidden_layers": 4, "intermediate_size": 512}
    model = tiny_model("qwen3", torch.float32, vocab_size=len(tokenizer), max_position_embeddings=256, **shape)
    requests = made_requests(len(tokenizer), options.groups, options.members, options.tokens)
    tokens = len(requests) * options.tokens
    bench = Bench("serve_engine")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder)
        model.save_pretrained(path / "model")
        arguments = (*ARGUMENTS, "--served-model-name", "policy")
        urls: list[str] = []
        groups: list[int] = []
        for count in (1, 2):
            running = stack.enter_context(serving(path / "model", path / f"log {count}", *arguments))
            urls.append(running.url)
            groups.append(running.process.pid)
            generate = engine.VllmServer(urls, tokenizer)
            bench.against(
                f"{len(requests)} requests, {tokens:,} tokens, {count} server{'s' if count > 1 else ''}",
                "openai client",
                lambda generate=generate: generate_all(generate, requests),  # type: ignore[misc]
                lambda urls=tuple(urls): by_openai(urls, requests),  # type: ignore[misc]
                runs=options.runs,
                goal=1.0,
                read=numbers,
            )
            line = bench.lines[-1]
            line["ours_processor"] = spent(lambda generate=generate: generate_all(generate, requests), groups)  # type: ignore[misc]
            line["peer_processor"] = spent(lambda urls=tuple(urls): by_openai(urls, requests), groups)  # type: ignore[misc]
            print(f"  seconds of client and servers: {line['ours_processor']}, {line['peer_processor']}")
            line["ours_tokens_per_second"] = 1e3 * tokens / line["ours_ms"]
            line["peer_tokens_per_second"] = 1e3 * tokens / line["peer_ms"]
            print(f"  tokens a second: {line['ours_tokens_per_second']:,.0f}, {line['peer_tokens_per_second']:,.0f}")
            generate.close()
    bench.write()


if __name__ == "__main__":
    main()
