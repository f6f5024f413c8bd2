"""Measure a store of millions of small trajectories: open, scan, statistics, page, random reads for replay, verify.

    python bench/store_scale.py [--trajectories 2000000] [--per-iteration 16384] [--folder FOLDER]

Trajectories have 152 tokens in two turns, groups have eight members, and there are 100 000 tasks. A line shows CPU
seconds, wall seconds and bytes read (`rchar` of `/proc/self/io`). Each result is compared with that of NumPy on the
same random numbers. A store in `--folder` is kept, and reused by later runs.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
from common import Bench, counted
from numpy.typing import NDArray

import agentrl_core as arl
from agentrl_core import scan
from agentrl_core.view import Page
from agentrl_core.view.iteration_statistics import statistics

Value = TypeVar("Value")
MEMBERS, TASKS = 8, 100_000
PROMPT, ACTION, OBSERVATION = 24, 48, 32
REPLAYED = (16, 256, 4096)
CHECKED = 16
"""Trajectories of a random read whose tokens are compared."""


def contents(iteration: int, count: int) -> tuple[list[NDArray[np.int32]], NDArray[np.int64]]:
    """Return the tokens of an iteration's nodes, `[trajectories, length]` each in path order, and its rewards."""
    rng = np.random.default_rng(iteration)
    prompts = np.repeat(rng.integers(0, 50_000, (count // MEMBERS, PROMPT), np.int32), MEMBERS, axis=0)
    others = [rng.integers(0, 50_000, (count, length), np.int32) for length in (ACTION, OBSERVATION, ACTION)]
    return [prompts, *others], rng.integers(0, 2, count)


def batch_of(iteration: int, count: int) -> arl.Batch:
    """Return the trajectories of an iteration."""
    forest = arl.Forest(iteration=iteration)
    groups = count // MEMBERS
    for group in range(groups):
        forest.add_group(group, f"task {(iteration * groups + group) % TASKS}")
    paths = [forest.start(group, member) for group in range(groups) for member in range(MEMBERS)]
    nodes, rewards = contents(iteration, count)
    logprobs = -np.ones(count * ACTION, np.float32)
    for tokens, kind in zip(nodes, ("prompt", "action", "observation", "action"), strict=True):
        offsets = np.arange(count + 1) * tokens.shape[1]
        columns = {"logprobs": (logprobs, offsets)} if kind == "action" else {}
        forest.append_many(paths, (tokens.reshape(-1), offsets), kind=kind, **columns)
        if kind == "action":
            for path in paths:
                forest.step(path)
    for path, reward in zip(paths, rewards.tolist(), strict=True):
        forest.finish(path, reward=float(reward), success=bool(reward))
    return forest.freeze()


def build(path: Path, iterations: int, count: int) -> None:
    """Write the store, or its missing iterations."""
    with arl.Store.open(path) as store:
        for iteration in range(store.iteration, iterations):
            batch = store.rebase(batch_of(iteration, count))
            store.append(batch, iteration=iteration)
            advantage = np.zeros(batch.num_draws, np.float32)
            store.close_iteration(batch.with_columns("draw", advantage=advantage), {"metrics": {"loss": 0.5}})


def measured(bench: Bench, work: str, call: Callable[[], Value]) -> Value:
    """Return the result of a call, and record its cost."""
    read, cpu, wall = counted("rchar"), time.process_time(), time.perf_counter()
    value = call()
    line = {
        "work": work,
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "read_mb": (counted("rchar") - read) / 1e6,
        "most_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    bench.lines.append(line)
    print(
        f"{work:<34} {line['cpu_s']:9.3f} s CPU {line['wall_s']:9.3f} s {line['read_mb']:10.1f} MB read"
        f" {line['most_rss_mb']:8.0f} MB most memory",
        flush=True,
    )
    return value


def scans(bench: Bench, path: Path, iterations: int, count: int) -> None:
    """Measure filters and means over all rows."""
    run = scan(path)
    rewards = np.concatenate([contents(iteration, count)[1] for iteration in range(iterations)])
    row_count = measured(bench, "count", lambda: run.trajectories.select(pl.len()).collect().item())
    assert row_count == iterations * count
    reward = pl.col("reward").cast(pl.Float64).mean()
    mean = measured(bench, "mean reward", lambda: run.trajectories.select(reward).collect().item())
    assert np.isclose(mean, rewards.mean(), rtol=1e-9)
    logprobs = pl.col("logprobs").list.sum().cast(pl.Float64).sum()
    total = measured(bench, "sum of all log-probs", lambda: run.nodes.select(logprobs).collect().item())
    assert total == -2 * ACTION * iterations * count
    middle = iterations // 2
    one = run.trajectories.filter(pl.col("iteration") == middle).select("reward")
    rows = measured(bench, "an iteration", one.collect)
    assert np.array_equal(rows["reward"].to_numpy(), contents(middle, count)[1])
    task = run.trajectories.filter(pl.col("task_id") == "task 7").select(pl.len())
    groups = iterations * count // MEMBERS
    assert measured(bench, "a task", lambda: task.collect().item()) == MEMBERS * len(range(7, groups, TASKS))


def reads(bench: Bench, store: arl.Store, count: int, total: int) -> None:
    """Read random trajectories like replay, twice each, to see the effect of caches."""
    for size in REPLAYED:
        ids = np.unique(np.random.default_rng(size).integers(0, total, size))
        for again in ("", ", again"):
            batch = measured(
                bench, f"{len(ids)} random trajectories{again}", lambda ids=ids: store.trajectory_batch(ids)
            )
            assert np.array_equal(batch.trajectories.column("trajectory_id"), ids)
        drawn = batch.with_draws(ids[:CHECKED], iteration=0)
        contexts = drawn.contexts()
        ends = np.cumsum([PROMPT + 2 * ACTION + OBSERVATION] * len(ids[:CHECKED]))
        assert len(contexts.tokens) == ends[-1]
        for number, end in zip(ids[:CHECKED].tolist(), ends.tolist(), strict=True):
            nodes, _ = contents(number // count, count)
            expected = np.concatenate([tokens[number % count] for tokens in nodes])
            assert np.array_equal(contexts.tokens[end - len(expected) : end], expected)


def main() -> None:
    """Build a store, and read it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=2_000_000)
    parser.add_argument("--per-iteration", type=int, default=16_384)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder unless it is given")
    options = parser.parse_args()
    count = options.per_iteration // MEMBERS * MEMBERS
    iterations = max(1, -(-options.trajectories // count))
    bench = Bench("store_scale")
    with tempfile.TemporaryDirectory() as temporary:
        path = options.folder or Path(temporary) / "run"
        measured(bench, f"build {iterations * count} trajectories", lambda: build(path, iterations, count))
        store = measured(bench, "open for reading", lambda: arl.Store.open(path, read_only=True))
        assert store.iteration == iterations
        scans(bench, path, iterations, count)
        rows = measured(bench, "stats", lambda: statistics(scan(store)))
        assert rows["iteration"].to_list() == list(range(iterations))
        assert int(rows["draws"].sum()) == iterations * count
        page = measured(bench, "view", lambda: Page.of(store))
        target = page.save(Path(temporary) / "page.html")
        assert target.stat().st_size > 10_000
        reads(bench, store, count, iterations * count)
        batch = measured(bench, "the batch of an iteration", lambda: store.batch(iterations // 2))
        assert np.array_equal(batch.column("reward", "draw"), contents(iterations // 2, count)[1])
        assert measured(bench, "verify", store.verify) == []
    bench.write(trajectories=iterations * count, per_iteration=count)


if __name__ == "__main__":
    main()
