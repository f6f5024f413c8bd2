"""Overhead of an iteration of the loop, without model and engine, from ten thousand to ten million tokens.

    python bench/loop.py [--tokens 10_000 100_000 1_000_000 10_000_000] [--seconds-per-token 2e-5] [--demo]

The loop is that of the README, with a store on disk: collect, credit, pack, update. Engine and environment answer at
once, and their time is subtracted. Texts are tokenised in advance, and there is no model. The rest is agentrl_core:

- collect: programs, forest, rollout log, checks, the rows of the batch on disk, without engine and environment;
- credit: advantage and weight;
- pack: the packs of one epoch with all tensors of a training step;
- store: the computed columns and the state, committed.

The bench compares these seconds with an assumed time of a training step: `--seconds-per-token`. The default, 2e-5, is
that of a model of 7 B parameters on eight H100 at 40 % of their peak: 6 x 7e9 / (8 x 0.4 x 989e12) = 1.3e-5 s to train
a token, and half of that to sample it, which is less than any engine takes. Each size runs in a process of its own: a
small iteration, then three, and more until they have taken some seconds. Times are those of the fastest. Memory is the
growth of the peak, beside the bytes of the tokens' columns (token, log-prob and entropy as stored; advantage and weight
of each action token).

`--demo` also trains five iterations of the demo, with its model on this processor, and prints the seconds of its
phases.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
from collect import END
from common import LEAST_SECONDS, circumstances, keep

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.env import StepResult, Task

TURNS, ACTION, MEMBERS, PACK = 4, 256, 8, 16_384
PARTS = ("collect", "credit", "pack", "store")

AGENTRL = Path(sys.executable).with_name("agentrl")

PROMPT, OBSERVATION = np.full(32, 5, np.int32), np.full(8, 6, np.int32)
CHAT = SimpleNamespace(
    prompt=lambda _: PROMPT,
    observation=lambda _: OBSERVATION,
    decode=lambda _: "an action",
    stop_token_ids=(END,),
    end_of_turn=END,
)

SAID = np.random.default_rng(0).integers(0, 90, 1 << 20, np.int32)
LOGPROBS = -np.random.default_rng(1).random(ACTION, np.float32)


class Clock:
    """Seconds by part of an iteration."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Count the seconds of a block."""
        begin = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - begin


class Engine:
    """An engine that answers at once, with other tokens for each seed."""

    chat, vocabulary_size, entropy_estimator, policy_version, shares_parameters = CHAT, 100, "exact", 0, False

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    async def generate(self, request: Request) -> Segment:
        """Return an action of `ACTION` tokens."""
        since = time.perf_counter()
        begin = request.seed % (len(SAID) - ACTION)
        tokens = SAID[begin : begin + ACTION].copy()
        tokens[-1] = END
        segment = Segment(tokens, LOGPROBS, -LOGPROBS, "stop", self.policy_version, request.seed)
        self.clock.seconds["engine"] += time.perf_counter() - since
        return segment

    def update_weights(self, model: object, version: int) -> None:
        """Advance the version; there are no weights."""
        del model
        self.policy_version = version


class World:
    """Episodes of `TURNS` turns, so short that they need no thread."""

    runs = "inline"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        """Return tasks with numbers as ids."""
        del split
        return [Task(f"task {number}", "?", "bench", None) for number in range(start, start + count)]

    def reset(self, task: Task, seed: int) -> Episode:
        """Start an episode."""
        since = time.perf_counter()
        episode = Episode(self.clock, task, seed)
        self.clock.seconds["environment"] += time.perf_counter() - since
        return episode


class Episode:
    """An episode of `TURNS` turns."""

    observation = "begin"

    def __init__(self, clock: Clock, task: Task, seed: int) -> None:
        self.clock, self.task, self.seed, self.taken = clock, task, seed, 0

    def step(self, action: str) -> StepResult:
        """Return the next observation."""
        del action
        since = time.perf_counter()
        self.taken += 1
        if self.taken < TURNS:
            outcome = StepResult("go on")
        else:
            outcome = StepResult(reward=float(self.seed % 2), terminated=True, success=bool(self.seed % 2))
        self.clock.seconds["environment"] += time.perf_counter() - since
        return outcome

    def state_key(self) -> bytes:
        """Return the number of the turn."""
        return self.taken.to_bytes(4, "little")


def iteration(collect: arl.Collector, recipe: arl.Recipe, tasks: int, clock: Clock) -> arl.Batch:
    """Run one iteration without a model; `clock` gets the seconds of its parts."""
    with clock.of("collect"):
        batch = collect(tasks=tasks, group_size=MEMBERS)
    with clock.of("credit"):
        batch = recipe.credit(batch)
    with clock.of("pack"):
        updates = recipe.updates(batch)
        for update in updates:
            for pack in update.pack(max_tokens=PACK):
                assert len(pack.input_ids)
    with clock.of("store"):
        collect.end_iteration(batch, {"loss": 0.5})
    clock.seconds["collect"] -= clock.seconds["engine"] + clock.seconds["environment"]
    return batch


def resident(kind: str) -> int:
    """Return the bytes of memory that this process has (`VmRSS`) or had at most (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(kind))


def column_bytes(batch: arl.Batch) -> int:
    """Return the bytes of the tokens' columns: stored, and computed for tokens of actions."""
    stored = pl.DataFrame(batch.nodes).select("tokens", "logprobs", "entropies")
    return int(stored.estimated_size()) + 2 * 4 * len(batch.column("token", "token"))


def measured(tokens: int, runs: int) -> dict[str, Any]:
    """Measure the parts of an iteration of about `tokens` tokens."""
    clock, recipe = Clock(), recipes.GRPO.replace(epochs=1, minibatches=1)
    length = len(CHAT.prompt("begin")) + TURNS * ACTION + (TURNS - 1) * len(CHAT.observation("go on"))
    tasks = max(1, round(tokens / (MEMBERS * length)))
    seconds = []
    with tempfile.TemporaryDirectory() as folder, arl.Store.open(folder) as store:
        collect = arl.Collector(
            Engine(clock),
            World(clock),
            recipe,
            store=store,
            task_pool=max(tasks, 8),
            sampling=Sampling(max_tokens=ACTION),
            context_tokens=1 << 20,
            concurrency=1 << 20,
        )
        iteration(collect, recipe, 1, clock)
        gc.collect()
        before = resident("VmRSS")
        begin = time.perf_counter()
        while len(seconds) < runs or time.perf_counter() - begin < LEAST_SECONDS:
            clock.seconds.clear()
            batch = iteration(collect, recipe, tasks, clock)
            seconds.append({part: clock.seconds[part] for part in PARTS})
            if len(seconds) == 1:
                grown = resident("VmHWM") - before
        collect.close()
        count = batch.num_draws * length
        return {
            "tokens": count,
            **min(seconds, key=lambda parts: sum(parts.values())),
            "memory": grown,
            "column_bytes": column_bytes(batch),
        }


def demo() -> dict[str, float]:
    """Return the seconds of five iterations of the demo by part, from the metrics of `agentrl train`."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["train", "--run", f"{folder}/run", "--iterations", "5"]
        subprocess.run([AGENTRL, *command], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        with arl.Store.open(f"{folder}/run", read_only=True) as store:
            return dict(store.state["metrics"]["seconds"])


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--seconds-per-token", type=float, default=2e-5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure, options.runs)))
        return
    print(f"share of a step of {options.seconds_per_token:g} s a token")
    print(
        f"{'tokens':>10} "
        + " ".join(f"{part:>9}" for part in PARTS)
        + f" {'ms':>9} {'ns/token':>9} {'share':>7} memory"
    )
    lines = []
    for tokens in options.tokens:
        command = [sys.executable, __file__, "--measure", str(tokens), "--runs", str(options.runs)]
        completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
        line = json.loads(completed.stdout)
        total = sum(line[part] for part in PARTS)
        share = total / (line["tokens"] * options.seconds_per_token)
        times = {f"{part}_ms": 1e3 * line.pop(part) for part in PARTS}
        lines.append({"work": f"{tokens} tokens", **line, **times, "all_ms": 1e3 * total, "share": share})
        print(
            f"{line['tokens']:>10} "
            + " ".join(f"{times[f'{part}_ms']:9.1f}" for part in PARTS)
            + f" {1e3 * total:9.1f} {1e9 * total / line['tokens']:9.0f} {share:7.2%}"
            + f" {line['memory'] / 1e6:.0f} MB, {line['memory'] / line['column_bytes']:.1f} x the columns",
            flush=True,
        )
    record = {"bench": "loop", **circumstances(), "seconds_per_token": options.seconds_per_token, "lines": lines}
    if options.demo:
        record["demo_seconds"] = demo()
        print("demo, seconds: " + ", ".join(f"{part} {spent:.2f}" for part, spent in record["demo_seconds"].items()))
    keep(record)


if __name__ == "__main__":
    main()
