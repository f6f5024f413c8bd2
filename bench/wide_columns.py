"""Token columns beside raw Arrow: 96 experts a token of 256 rollouts, from a batch, from a store and in packs.

    python bench/wide_columns.py [--runs 20]

Each line first compares the numbers. The peer is pyarrow: the same column of the same table; a separate file with the
nodes of the batch, read whole, with one column converted to an array; and its `take` of the rows of a pack. A batch of
a store does more work: it reads six tables and verifies their checksums and references. Packs have experts as 16-bit
integers, -1 for tokens without any.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from common import Bench
from numpy.typing import NDArray

import agentrl_core as arl
from agentrl_core.model.recorded_routes import RecordedRoutes

GROUPS, MEMBERS, PROMPT, ANSWER, WIDTH = 32, 8, 256, 256, 96


def batch_of(seed: int) -> arl.Batch:
    """Return rollouts with rows for all tokens but the last of each."""
    rng = np.random.default_rng(seed)
    forest = arl.Forest()
    for group in range(GROUPS):
        forest.add_group(group, f"task {group}")
        prompt = rng.integers(0, 50_000, PROMPT, np.int32)
        for member in range(MEMBERS):
            trajectory = forest.start(group, member)
            forest.append(trajectory, prompt, kind="prompt")
            rows = rng.integers(0, 128, (PROMPT + ANSWER - 1, WIDTH), np.uint8)
            answer = rng.integers(0, 50_000, ANSWER, np.int32)
            logprobs = -rng.random(ANSWER, np.float32)
            forest.append(trajectory, answer, kind="action", logprobs=logprobs, columns={"routed_experts": (0, rows)})
            forest.finish(trajectory, reward=float(member % 2))
    return forest.freeze()


def flat(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    """Return rows of an Arrow column of nested fixed-size lists, 255 for missing ones."""
    rows = column.combine_chunks().flatten()
    values: NDArray[np.uint8] = np.array(rows.values.to_numpy(zero_copy_only=False)).reshape(-1, WIDTH)
    if rows.null_count:
        values[np.asarray(rows.is_null())] = 255
    return values


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    bench, batch = Bench("wide_columns"), batch_of(0)
    table = pa.table(batch.nodes)
    tokens = len(batch.column("token", "node_token"))
    print(f"{tokens} tokens, {tokens * WIDTH / 1e6:.0f} MB of rows")
    bench.against(
        "column of a batch",
        "pyarrow",
        lambda: batch.column("routed_experts", "node_token"),
        lambda: flat(table["routed_experts"]),
        runs=runs,
        goal=1.0,
    )
    plan = batch.plan(np.arange(batch.num_draws), 16_384)
    lists, routes = table["routed_experts"].combine_chunks().flatten(), RecordedRoutes(batch)
    places = [plan.row_tokens(index) for index in range(len(plan))]
    bench.against(
        "experts of all packs",
        "pyarrow take",
        lambda: [routes.of_pack(plan, index) for index in range(len(plan))],
        lambda: [experts_of(lists.take(pa.array(place))) for place in places],
        runs=runs,
        goal=1.0,
        read=np.concatenate,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with arl.Store.open(path / "run") as store:
            batch = store.rebase(batch)
            store.append(batch, iteration=0)
            store.close_iteration(batch, {})
        with pa.OSFile(str(path / "raw.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)

        def stored() -> NDArray[np.uint8]:
            with arl.Store.open(path / "run", read_only=True) as store:
                column: NDArray[np.uint8] = store.batch(0).column("routed_experts", "node_token")
            return column

        def raw() -> NDArray[np.uint8]:
            return flat(pa.ipc.open_file(str(path / "raw.arrow")).read_all()["routed_experts"])

        bench.against("batch of a store", "pyarrow, nodes alone", stored, raw, runs=runs, goal=0.25)
    bench.write()


def experts_of(rows: pa.FixedSizeListArray) -> NDArray[np.int16]:
    """Return rows in the format of a pack."""
    values: NDArray[np.int16] = np.asarray(rows.values).reshape(-1, WIDTH).astype(np.int16)
    if rows.null_count:
        values[np.asarray(rows.is_null())] = -1
    return values


if __name__ == "__main__":
    main()
