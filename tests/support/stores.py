"""Stores with a few trained iterations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from forests import grow, same

from agentrl_core import Batch, Store


def trained(store: Store, iteration: int) -> Batch:
    """Run the store calls of a loop for one iteration."""
    batch = store.rebase(grow(iteration, iteration=iteration)[0])
    store.append(batch, iteration=iteration)
    rng = np.random.default_rng(iteration)
    batch = batch.with_columns("draw", advantage=rng.random(batch.num_draws))
    batch = batch.with_columns("token", weight=batch.token_weights(np.arange(batch.num_draws)))
    batch = batch.with_columns("node_token", reference_logprob=-rng.random(batch.offsets("node_token")[-1]))
    batch = batch.with_recipe("mine", {"clip": 0.2})
    store.close_iteration(batch, {"iteration": iteration, "metrics": {"loss": 0.5, "kl": float("nan")}})
    return batch


def assert_same_as_trained(actual: Batch, expected: Batch) -> None:
    assert same(actual, expected)
    assert pl.DataFrame(actual.nodes).equals(pl.DataFrame(expected.nodes), null_equal=True), "the time of making too"
    for name in ("draw_columns", "step_columns", "node_columns"):
        mine, other = getattr(actual, name), getattr(expected, name)
        assert pl.DataFrame(mine).equals(pl.DataFrame(other), null_equal=True)
    for name, level in [("advantage", "draw"), ("weight", "token"), ("reference_logprob", "node_token")]:
        column = expected.column(name, level)
        assert actual.column(name, level).dtype == column.dtype
        np.testing.assert_array_equal(actual.column(name, level), column)


def scan(folder: Path) -> pl.DataFrame:
    """Read a table's files with stock Polars while a process may write them; no columns if there are no files.

    Raises:
        FileNotFoundError: files were just being merged.
        PolarsError: the same.
    """
    # Listing a folder is not atomic: of files that are merged meanwhile, neither name may be seen, or both.
    files = sorted({*folder.glob("*.arrow"), *folder.glob("*.arrow")})
    if not files:
        return pl.DataFrame()
    rows = pl.scan_ipc(files, include_file_paths="path").collect()
    begins = rows.with_row_index("begin").group_by("path", maintain_order=True).first()
    names = [(int(Path(path).name.partition("-")[0]), begin) for path, begin in begins["path", "begin"].iter_rows()]
    if any(first != begin for first, begin in names):
        raise FileNotFoundError(folder)
    return rows.drop("path")
