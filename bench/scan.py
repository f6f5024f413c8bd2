"""Reading a run: Polars over the store's files, beside the JSONL that training scripts leave and plain Python.

    python bench/scan.py [--iterations 10]

Every figure is the best of five; every result is compared with the peer's before it is printed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from common import circumstances, keep
from polars.testing import assert_frame_equal

import agentrl_core as arl
from agentrl_core import scan
from agentrl_core.cli import main as agentrl
from agentrl_core.integrations.polars.tables import Tables

LINES: list[dict[str, Any]] = []

GROUPS, MEMBERS, TURNS, ACTION, OBSERVATION = 32, 8, 4, 128, 32


def record(folder: Path, iterations: int) -> None:
    """Record a run of random tokens: eight trajectories per prompt, half of them forked after the first turn."""
    rng = np.random.default_rng(0)
    with arl.Store.open(folder) as store:
        for iteration in range(iterations):
            forest = arl.Forest(iteration=iteration)
            for group in range(GROUPS):
                forest.add_group(group, f"task {group}")
                prompt = rng.integers(0, 50_000, 256, np.int32)
                for member in range(MEMBERS // 2):
                    trunk = forest.start(group, member)
                    forest.append(trunk, prompt, kind="prompt")
                    _turns(forest, trunk, 1, rng)
                    branch = forest.fork(trunk)
                    for trajectory in (trunk, branch):
                        _turns(forest, trajectory, TURNS - 1, rng)
                        forest.finish(trajectory, reward=float(rng.integers(0, 2)))
            batch = store.rebase(forest.freeze())
            store.append(batch, iteration=iteration)
            store.close_iteration(batch.with_columns("draw", advantage=rng.standard_normal(batch.num_draws)), {})


def _turns(forest: arl.Forest, trajectory: int, count: int, rng: np.random.Generator) -> None:
    for _ in range(count):
        logprobs = -rng.random(ACTION, np.float32)
        forest.append(trajectory, rng.integers(0, 50_000, ACTION, np.int32), kind="action", logprobs=logprobs)
        forest.append(trajectory, rng.integers(0, 50_000, OBSERVATION, np.int32), kind="observation")


def walked(run: Tables) -> list[list[int]]:
    """Return all paths, by a loop over the nodes."""
    nodes = {row["node_id"]: row for row in run.nodes.collect().iter_rows(named=True)}
    paths = []
    for leaf in run.trajectories.select("leaf_node_id").collect()["leaf_node_id"]:
        parts, node, end = [], leaf, None
        while node is not None:
            parts.append(nodes[node]["tokens"][:end])
            node, end = nodes[node]["parent_id"], nodes[node]["parent_end"]
        paths.append([token for part in reversed(parts) for token in part])
    return paths


def best(work: Callable[[], Any], times: int = 5) -> tuple[float, Any]:
    """Return the seconds of the fastest call, and its result."""
    fastest = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        result = work()
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest, result


def line(what: str, ours: float, theirs: float, peer: str) -> None:
    """Print a figure and add it to the record."""
    LINES.append({"work": what.partition(",")[0], "peer": peer, "ours_ms": 1e3 * ours, "peer_ms": 1e3 * theirs})
    print(f"{what:<44} {1e3 * ours:9.1f} ms   {peer} {1e3 * theirs:9.1f} ms   {theirs / ours:6.1f} x")


def main() -> None:
    """Record, measure, compare."""
    parser = argparse.ArgumentParser(description="Reading a run in Polars.")
    parser.add_argument("--iterations", type=int, default=10)
    iterations = parser.parse_args().iterations
    with tempfile.TemporaryDirectory() as folder:
        store, rows = Path(folder, "run"), Path(folder, "rows.jsonl")
        record(store, iterations)
        run = scan(store)
        draws = run.draws.collect()
        assert agentrl(["export", str(store), "--to", str(rows)]) == 0
        stored = run.nodes.select(pl.col("tokens").list.len().cast(pl.Int64).sum()).collect().item()
        size = sum(file.stat().st_size for file in (store / "nodes").glob("*.arrow"))
        print(f"{len(draws):,} draws, {stored:,} tokens stored, {size / stored:.1f} bytes per token in nodes")

        def by_iteration(frame: pl.LazyFrame) -> pl.DataFrame:
            return frame.group_by("iteration").agg(pl.col("reward").mean(), pl.len()).sort("iteration").collect()

        ours, table = best(lambda: by_iteration(scan(store).draws.agentrl.trajectories(scan(store))))
        theirs, expected = best(lambda: by_iteration(pl.scan_ndjson(rows)), 2)
        assert_frame_equal(table, expected, check_dtypes=False)
        line("mean reward by iteration", ours, theirs, "JSONL")

        def logprob(frame: pl.LazyFrame) -> float:
            return float(frame.select(pl.col("logprobs").list.explode().mean()).collect().item())

        ours, mean = best(lambda: logprob(scan(store).draws.agentrl.sequences(scan(store))))
        theirs, expected_mean = best(lambda: logprob(pl.scan_ndjson(rows)), 2)
        assert np.isclose(mean, expected_mean, rtol=1e-5)
        line("mean log-prob of all training sequences", ours, theirs, "JSONL")

        ours, paths = best(
            lambda: scan(store).trajectories.select("trajectory_id").agentrl.paths(scan(store)).collect()
        )
        theirs, expected_paths = best(lambda: walked(scan(store)), 2)
        assert paths["tokens"].to_list() == expected_paths
        tokens = int(paths["tokens"].list.len().sum())
        line(f"paths, {tokens / ours / 1e6:.0f} M tokens a second", ours, theirs, "Python")
    keep({"bench": "scan", **circumstances(), "lines": LINES})


if __name__ == "__main__":
    main()
