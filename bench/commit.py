"""Commit of 2 048 trajectories to disk, with the same fsyncs: the Store beside Arrow IPC, msgspec and JSONL.

    python bench/commit.py [--trajectories 2048] [--folder DIR] [--reopen-gigabytes 10]

A trajectory has 18 turns of 128 context and 128 sampled tokens, each node 128 tokens: 9.4 million tokens in all. The
peers write the columns needed for training (ids, log-probs, mask); raw Arrow writes the columns of the same nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from common import Bench, best

import agentrl_core as arl

NODE, TURNS = 128, 18


def forest_of(trajectories: int, iteration: int = 0) -> arl.Forest:
    """Return finished trajectories."""
    rng = np.random.default_rng(iteration)
    forest = arl.Forest(iteration=iteration)
    handles = []
    for group in range(0, trajectories, 8):
        forest.add_group(group // 8, f"task-{group // 8}")
        handles += [forest.start(group // 8, member) for member in range(min(8, trajectories - group))]
    rows = 2 * TURNS * trajectories
    tokens = rng.integers(0, 150_000, rows * NODE, dtype=np.int32)
    # A row of an action has log-probs; a row of context has none.
    counts = np.tile(np.array([0, NODE], np.int64), rows // 2)
    logprobs = -rng.random(int(counts.sum()), dtype=np.float32)
    forest.append_many(
        np.repeat(handles, 2 * TURNS),
        (tokens, np.arange(rows + 1, dtype=np.int64) * NODE),
        kind=np.tile(np.array([4, 1], np.uint8), rows // 2),
        logprobs=(logprobs, np.concatenate([[0], np.cumsum(counts)])),
    )
    for handle in handles:
        forest.finish(handle, reward=1.0)
    return forest


def synced(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file and sync it and its folder to disk."""
    with path.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def rows_of(nodes: pa.Table) -> list[dict[str, Any]]:
    """Return one row per trajectory, as Python objects."""
    rows = []
    table = nodes.select(["tokens", "logprobs"]).to_pydict()
    for start in range(0, nodes.num_rows, 2 * TURNS):
        part = slice(start, start + 2 * TURNS)
        tokens = [token for row in table["tokens"][part] for token in row]
        values = [row or [0.0] * NODE for row in table["logprobs"][part]]
        mask = [int(row is not None) for row in table["logprobs"][part] for _ in range(NODE)]
        rows.append({"tokens": tokens, "logprobs": [value for row in values for value in row], "mask": mask})
    return rows


def folder_size(folder: Path) -> int:
    """Return the bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def reopen(folder: Path, gigabytes: float, batch: arl.Batch) -> float:
    """Return the milliseconds to open a store of a given size; it holds copies of the rollouts and is then deleted."""
    with arl.Store.open(folder, sync="never") as store:
        while folder_size(folder) < gigabytes * 1e9:
            store.append(store.rebase(batch), iteration=0)
            store.flush()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        with arl.Store.open(folder, read_only=True):
            times.append(time.perf_counter() - start)
    shutil.rmtree(folder)
    return 1e3 * min(times)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=2048)
    parser.add_argument("--folder", metavar="DIR", help="where to write; a temporary folder unless it is given")
    parser.add_argument("--reopen-gigabytes", type=float, default=0, help="also open a store of that size")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=options.folder))
    bench = Bench("commit")
    forest = forest_of(options.trajectories)
    start = time.perf_counter()
    batch = forest.freeze()
    freeze = 1e3 * (time.perf_counter() - start)
    nodes = pa.table(batch.nodes)
    total = len(nodes["tokens"].combine_chunks().flatten())
    assert total == options.trajectories * 2 * TURNS * NODE
    rows = rows_of(nodes)
    count = iter(range(1_000_000))

    def store() -> Path:
        folder = root / f"store-{next(count)}"
        with arl.Store.open(folder) as opened:
            opened.append(batch, iteration=0)
            opened.flush()
        return folder

    def arrow() -> Path:
        folder = root / f"arrow-{next(count)}"
        folder.mkdir()

        def write(file: Any) -> None:
            with pa.ipc.new_file(file, nodes.schema) as writer:
                writer.write_table(nodes)

        synced(folder / "nodes.arrow", write)
        return folder

    def lines() -> Path:
        folder = root / f"jsonl-{next(count)}"
        folder.mkdir()
        synced(folder / "rows.jsonl", lambda file: file.writelines(json.dumps(row).encode() + b"\n" for row in rows))
        return folder

    def packed() -> Path:
        folder = root / f"msgspec-{next(count)}"
        folder.mkdir()
        synced(folder / "rows.msgpack", lambda file: file.write(msgspec.msgpack.encode(rows)))
        return folder

    def tokens_in(folder: Path) -> list[int]:
        """Return the number and the sum of the written tokens."""
        if list(folder.glob("rows.jsonl")):
            tokens = [json.loads(line)["tokens"] for line in (folder / "rows.jsonl").open()]
        elif list(folder.glob("rows.msgpack")):
            tokens = [row["tokens"] for row in msgspec.msgpack.decode((folder / "rows.msgpack").read_bytes())]
        else:
            files = [*folder.glob("nodes.arrow"), *folder.glob("nodes/*.arrow")]
            flat = [pa.ipc.open_file(file).read_all()["tokens"].combine_chunks().flatten() for file in files]
            tokens = [part.to_numpy() for part in flat]
        return [sum(map(len, tokens)), int(sum(np.sum(part, dtype=np.int64) for part in tokens))]

    work = f"{total / 1e6:.1f} M tokens"
    for peer, theirs, goal in (("Arrow IPC", arrow, 1 / 1.2), ("msgspec", packed, 1), ("JSONL", lines, 10)):
        bench.against(work, peer, store, theirs, runs=options.runs, goal=goal, read=tokens_in)
    sizes = {name: folder_size(make()) / total for name, make in (("store", store), ("arrow", arrow))}
    sizes["memory"] = batch.nodes.nbytes / total
    figures: dict[str, float] = {f"bytes per token, {name}": size for name, size in sizes.items()}
    figures["freeze, ms"] = freeze
    figures["freeze, nodes"] = nodes.num_rows
    figures["building by append_many, ms"] = best(lambda: forest_of(options.trajectories), 2)
    if options.reopen_gigabytes:
        figures[f"open {options.reopen_gigabytes:g} GB, ms"] = reopen(root / "large", options.reopen_gigabytes, batch)
    for name, value in figures.items():
        print(f"{name:<44} {value:12.2f}")
    shutil.rmtree(root)
    bench.write(figures=figures)


if __name__ == "__main__":
    main()
