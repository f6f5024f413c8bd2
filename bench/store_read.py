"""Reading stored trajectories by reference from a growing store: milliseconds, bytes, and bytes of a commit.

    python bench/store_read.py [--gigabytes 2] [--scan-at 1 3 10] [--tokens 4000] [--folder FOLDER]

Iterations of 16 groups of 16 trajectories are appended until the store has its size. At each tenth of it, a line shows
the bytes of the last commit of an iteration's state (its manifest included), and the cost of reading random
trajectories: bytes requested from the system (`/proc/self/io`) beside the bytes of their rows, and milliseconds from a
warm cache. At the sizes of `--scan-at` (gigabytes of nodes) follow the lines of `store_scan.py`: opening, the scan of a
column beside Polars, statistics, and filters on an iteration and on a task, with the bytes read. The last lines measure
a memory that refers to all trajectories, the commit of its state after one iteration, and opening with more files.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from common import circumstances, counted, keep
from numpy.typing import NDArray
from store_scan import manifests
from store_scan import measured as scanned

import agentrl_core as arl
from agentrl_core.replay.memory_rows import MemoryRows

GROUPS, MEMBERS, TURNS, PROMPT = 16, 16, 8, 300


def batch_of(iteration: int, tokens: int) -> arl.Batch:
    """Return groups of linear trajectories after one prompt each: half of a turn is an action, half an observation."""
    rng = np.random.default_rng(iteration)
    forest = arl.Forest(iteration=iteration)
    length = tokens // TURNS // 2
    paths = []
    for group in range(GROUPS):
        forest.add_group(group, f"task {(iteration * GROUPS + group) % 1000}")
        prompt = rng.integers(0, 50_000, PROMPT, np.int32)
        for member in range(MEMBERS):
            paths.append(forest.start(group, member))
            forest.append(paths[-1], prompt, kind="prompt")
    many = len(paths) * length
    offsets = np.arange(len(paths) + 1) * length
    for _ in range(TURNS):
        action_tokens = rng.integers(0, 50_000, many, np.int32)
        forest.append_many(
            paths, (action_tokens, offsets), kind="action", logprobs=(-rng.random(many, np.float32), offsets)
        )
        for path in paths:
            forest.step(path)
        forest.append_many(paths, (rng.integers(0, 50_000, many, np.int32), offsets), kind="observation")
    for path in paths:
        forest.finish(path, reward=float(rng.integers(0, 2)))
    return forest.freeze()


def row_bytes(batch: arl.Batch) -> int:
    """Return the bytes of the rows of a batch."""
    return sum(table_bytes(table) for table in (batch.nodes, batch.steps, batch.trajectories))


def table_bytes(table: object) -> int:
    """Return the bytes of a table's values."""
    return int(pl.DataFrame(table).estimated_size())


def read(store: arl.Store, ids: NDArray[np.int64]) -> tuple[float, float, int, int]:
    """Return milliseconds of the first and of the fastest read, bytes of the last read, and bytes of its result."""
    times = []
    for _ in range(6):
        before, begin = counted("rchar"), time.perf_counter()
        batch = store.trajectory_batch(ids)
        times.append(1e3 * (time.perf_counter() - begin))
        spent = counted("rchar") - before
    return times[0], min(times), spent, row_bytes(batch)


def main() -> None:
    """Fill the store, and measure at each tenth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--trajectories", type=int, default=256)
    parser.add_argument("--scan-at", type=float, nargs="*", default=[1.0, 3.0, 10.0])
    parser.add_argument("--folder")
    options = parser.parse_args()
    lines, scans, scan_sizes = [], [], sorted(options.scan_at)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        run, rng = Path(folder) / "run", np.random.default_rng(0)
        target_bytes = options.gigabytes * 1e9
        if shutil.disk_usage(folder).free < 1.5 * target_bytes:
            raise SystemExit(f"{folder} has no room for {options.gigabytes} GB; give --folder or fewer --gigabytes")
        print("     GB  trajectories  commit kB  manifest kB  rows MB  read MB  times  first ms  warm ms")
        with arl.Store.open(run, sync="never") as store:
            measured = 0.0
            while measured < target_bytes:
                new_batch = batch_of(store.iteration, options.tokens)
                batch = store.rebase(new_batch)
                store.append(batch, iteration=store.iteration)
                store.flush()
                before = counted("wchar")
                advantages = np.zeros(batch.num_draws, np.float32)
                store.close_iteration(batch.with_columns("draw", advantage=advantages), {"loss": 0.5})
                commit = counted("wchar") - before
                size = sum(path.stat().st_size for path in (run / "nodes").iterdir())
                while scan_sizes and size >= 1e9 * scan_sizes[0]:
                    scans += scanned(run)
                    scan_sizes.pop(0)
                if size < measured + target_bytes / 10:
                    continue
                measured = size if size < 0.999 * target_bytes else target_bytes
                trajectories = store.iteration * GROUPS * MEMBERS
                ids = np.sort(rng.choice(trajectories, min(options.trajectories, trajectories), replace=False))
                first, warm, spent, row_size = read(store, ids)
                manifest = next((run / "manifest").glob("*.json")).stat().st_size
                line = {
                    "gigabytes": size / 1e9,
                    "trajectories": trajectories,
                    "commit_kb": commit / 1e3,
                    "manifest_kb": manifest / 1e3,
                    "rows_mb": row_size / 1e6,
                    "read_mb": spent / 1e6,
                    "times": spent / row_size,
                    "first_ms": first,
                    "warm_ms": warm,
                }
                lines.append(line)
                print(
                    f"{size / 1e9:7.2f}  {trajectories:12}  {commit / 1e3:9.1f}  {manifest / 1e3:11.1f}"
                    f"  {row_size / 1e6:7.1f}  {spent / 1e6:7.1f}  {spent / row_size:5.2f}  {first:8.1f}  {warm:7.1f}",
                    flush=True,
                )
            snapshot = snapshots(store, trajectories)
            print(f"state of a memory of {trajectories} trajectories after one iteration: {snapshot:.1f} ms")
        lines += [*scans, *manifests(run, Path(folder) / "manifests")]
    keep({"bench": "store_read", **circumstances(), "lines": lines, "snapshot_ms": snapshot})


def snapshots(store: arl.Store, rows: int) -> float:
    """Return milliseconds to commit the state of a memory after an iteration with few changes, the best of three."""
    numbers = np.arange(rows)
    empty_rows = MemoryRows.empty().to_state()
    state = {name: numbers.astype(values.dtype) for name, values in empty_rows.items() if name != "columns"}
    times = []
    for turn in range(4):
        batch = store.rebase(arl.Forest(iteration=store.iteration).freeze())
        store.append(batch, iteration=store.iteration)
        state["priority"] = state["priority"].copy()
        state["priority"][turn :: max(rows // 4096, 1)] += 0.5
        arrays = {f"replay[0].Mix/memory/{name}": values for name, values in state.items()}
        begin = time.perf_counter()
        store.close_iteration(batch, {}, arrays)
        times.append(1e3 * (time.perf_counter() - begin))
    return min(times[1:])


if __name__ == "__main__":
    main()
