"""Gains and costs of asynchronous rollouts: learning, wall time, and waiting times of trainer and engine.

    python bench/continuous.py [--staleness 0 1 2 4] [--iterations 12] [--tasks 8] [--seed 0]

The task is that of the demo (products with a calculator), with a small warm-started model and GRPO. For every
staleness, the engine samples from a copy of the model and takes the trained weights after each step. Trainer and engine
share the cores of this machine, and a step slows the engine down. So the figures show how waiting is divided, not the
gain of two devices.

`trainer waits` is the share of time spent in `collect`, `engine waits` the share without a request to the engine, `age`
the mean staleness of trained tokens, in versions.
"""

from __future__ import annotations

import argparse
import copy
import threading
import time
from typing import Any

import numpy as np
import polars as pl
import torch
from common import Bench
from torch import nn

import agentrl_core as arl
from agentrl_core import engine, env, recipes
from agentrl_core.train.warm_start import warm_start


class Watched(engine.Transformers):
    """An engine that counts the seconds in which it has requests."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._busy = self._busy_since = 0.0
        self._waiting = 0
        self._tallies = threading.Lock()

    @property
    def busy(self) -> float:
        """Return the seconds until now."""
        with self._tallies:
            return self._busy + (time.perf_counter() - self._busy_since if self._waiting else 0.0)

    async def generate(self, request: engine.Request) -> engine.Segment:
        """Generate one segment."""
        with self._tallies:
            self._busy_since = self._busy_since if self._waiting else time.perf_counter()
            self._waiting += 1
        try:
            return await super().generate(request)
        finally:
            with self._tallies:
                self._waiting -= 1
                if not self._waiting:
                    self._busy += time.perf_counter() - self._busy_since


def age(batch: arl.Batch, version: int) -> float:
    """Return the mean staleness of the sampled tokens of a batch, in versions."""
    nodes = pl.DataFrame(batch.nodes).filter(pl.col("policy_version").is_not_null())
    counts = nodes["tokens"].list.len().to_numpy()
    return float(np.average(version - nodes["policy_version"].to_numpy(), weights=counts))


def trained(start: Any, tokenizer: Any, world: Any, staleness: int, options: Any) -> dict[str, Any]:
    """Run the loop once."""
    model = copy.deepcopy(start)
    generate = Watched(copy.deepcopy(start), tokenizer)
    generate.update_weights(model, version=0)
    collect = arl.Collector(
        generate, world, recipes.GRPO, seed=options.seed, staleness=staleness, sampling=engine.Sampling(max_tokens=24)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    before = collect.evaluate(tasks=options.held_out).success
    waited, idle = 0.0, generate.busy
    ages, success = [], []
    begin = time.perf_counter()
    for iteration in range(options.iterations):
        started = time.perf_counter()
        batch = collect(tasks=options.tasks, group_size=8)
        waited += time.perf_counter() - started
        ages.append(age(batch, iteration))
        success.append(float(np.mean(batch.column("success", "draw"))))
        batch = recipes.GRPO.credit(batch)
        updates = recipes.GRPO.updates(batch, seed=iteration)
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * min(1.0, (iteration + 1) / 4)
        for update in updates:
            for pack in update.pack(max_tokens=16_384):
                update.loss(pack.run(model), pack).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        generate.update_weights(model, version=iteration + 1)
        collect.end_iteration(batch, updates.metrics)
    seconds = time.perf_counter() - begin
    busy = generate.busy - idle
    collect.close()
    after = collect.evaluate(tasks=options.held_out).success
    collect.close()
    generate.close()
    return {
        "staleness": staleness,
        "seconds": seconds,
        "trainer_waits": waited / seconds,
        "engine_waits": max(1.0 - busy / seconds, 0.0),
        "age": float(np.mean(ages)),
        "before": before,
        "after": after,
        "success": success,
    }


def main() -> None:
    """Train with each staleness and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--held-out", type=int, default=64)
    parser.add_argument("--steps", type=int, default=240, help="of the warm start")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bench = Bench("continuous")
    world = env.ReasoningGym(["products"], seed=0, held_out=options.held_out)
    start, tokenizer = warm_start(world, seed=options.seed, steps=options.steps)
    print("staleness  seconds  trainer waits  engine waits   age  before  after")
    for staleness in options.staleness:
        line = trained(start, tokenizer, world, staleness, options)
        bench.lines.append(line)
        assert line["age"] <= staleness
        print(
            f"{staleness:>9} {line['seconds']:>8.1f} {line['trainer_waits']:>14.2f} {line['engine_waits']:>13.2f} "
            f"{line['age']:>5.2f} {line['before']:>7.3f} {line['after']:>6.3f}",
            flush=True,
        )
    bench.write()


if __name__ == "__main__":
    main()
