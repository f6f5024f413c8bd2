"""Operations of `store_read.py` on a whole store of some gigabytes: open, scan a column, statistics and filters.

Each is timed on files evicted from the page cache, and on files in memory. Bytes are those read from the disk
(`read_bytes` of `/proc/self/io`), read-ahead included. The peer of a scan is Polars on the same files, found by a
pattern; both results are compared. Opening a store with more files than today's disks hold is measured on synthetic
manifests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import xxhash
from common import counted, forget
from polars.testing import assert_frame_equal

import agentrl_core as arl
from agentrl_core import scan
from agentrl_core.view.iteration_statistics import statistics

# In 64 bits the sum of 10 GB does not depend on the division of rows among threads.
LOGPROB = pl.col("logprobs").list.sum().cast(pl.Float64).sum()


def measured(run: Path) -> list[dict[str, Any]]:
    """Measure each operation on a run; print a line for each and return them."""
    files = run / "nodes" / "*.arrow"
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    closed = arl.Store.open(run, read_only=True).iteration
    draws = pl.scan_ipc(run / "draws" / "*.arrow").select(pl.len()).collect().item()
    task = scan(run).trajectories.select("task_id").head(1).collect().item()
    predicates = {"an iteration": pl.col("iteration") == closed // 2, "a task": pl.col("task_id") == task}

    def column() -> float:
        return float(scan(run).nodes.select(LOGPROB).collect().item())

    def peer() -> float:
        return float(pl.scan_ipc(files).select(LOGPROB).collect().item())

    def few() -> pl.DataFrame:
        ids = scan(run).trajectories.filter(predicates["a task"]).select("trajectory_id").collect()["trajectory_id"]
        with arl.Store.open(run, read_only=True) as store:
            batch = store.trajectory_batch(ids)
        return scan(batch).trajectories.agentrl.paths(batch).collect()

    opened = _line(run, "open", lambda: arl.Store.open(run, read_only=True).close(), runs=20)
    ours = _line(run, "mean log-prob, scan", column)
    theirs = _line(run, "mean log-prob, Polars", peer)
    stats_line = _line(run, "stats", lambda: statistics(scan(run)), runs=1)
    assert np.isclose(ours[1], theirs[1], rtol=1e-9)
    assert int(stats_line[1]["draws"].sum()) == draws
    lines = [line for line, _ in (opened, ours, theirs, stats_line)]
    for name, predicate in predicates.items():

        def matching_rows(predicate: pl.Expr = predicate) -> pl.LazyFrame:
            return scan(run).trajectories.filter(predicate)

        assert matching_rows().collect().height < closed * 1024
        lines.append(
            _line(run, f"trajectories of {name}", lambda matching_rows=matching_rows: matching_rows().collect())[0]
        )
        line, paths = _line(
            run,
            f"paths of {name}",
            lambda matching_rows=matching_rows: matching_rows().agentrl.paths(scan(run)).collect(),
        )
        lines.append(line)
    line, same = _line(run, "paths of a task, trajectory_batch", few)
    assert_frame_equal(same, paths)
    lines.append(line)
    print(f"{size / 1e9:.2f} GB, {closed} iterations, {draws} draws")
    return [{"gigabytes": size / 1e9, **line} for line in lines]


def _line(run: Path, work: str, call: Callable[[], Any], *, runs: int = 2) -> tuple[dict[str, Any], Any]:
    """Return a result, and a line: milliseconds on evicted and on cached files, and bytes of the first read."""
    forget(run)
    before, begin = counted("read_bytes"), time.perf_counter()
    result = call()
    first, read = 1e3 * (time.perf_counter() - begin), counted("read_bytes") - before
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    line = {"work": work, "forgotten_ms": first, "warm_ms": min(times), "read_mb": read / 1e6}
    more = ""
    if isinstance(result, pl.DataFrame):
        line |= {"rows": result.height, "rows_mb": result.estimated_size() / 1e6}
        more = f"   for {line['rows_mb']:8.2f} MB in {line['rows']} rows"
    print(f"{work:<34} {first:10.1f} ms  warm {min(times):9.1f} ms  read {read / 1e6:10.2f} MB{more}", flush=True)
    return line, result


def manifests(run: Path, folder: Path) -> list[dict[str, Any]]:
    """Return a line for each number of files in a manifest, synthesised from one file of a run."""
    body = max((run / "manifest").glob("*.json")).read_text(encoding="utf-8").rsplit("\n", 2)[0]
    lines = []
    for count in (200, 2_000, 20_000, 200_000):
        content = json.loads(body)
        first = content["segments"]["nodes"][0]
        rows = first["sealed"][0]
        begin = content["next"]["node"]
        content["segments"]["nodes"] = [
            {
                "first_row": begin + rows * place,
                "commit": content["version"],
                "sealed": [rows, [begin + rows * place, begin + rows * (place + 1) - 1], first["sealed"][2]],
                "bounds": {"group_id": [begin + 128 * place, begin + 128 * place + 127]},
            }
            for place in range(count)
        ]
        content["rows"]["nodes"] = content["next"]["node"] = begin + rows * count
        text = json.dumps(content, separators=(",", ":"))
        path = folder / f"{count}" / "manifest" / f"{content['version']:08}.json"
        path.parent.mkdir(parents=True)
        path.write_text(f"{text}\n{xxhash.xxh3_128_hexdigest(text.encode())}\n", encoding="utf-8")
        times = []
        for _ in range(5):
            start = time.perf_counter()
            arl.Store.open(path.parent.parent, read_only=True).close()
            times.append(1e3 * (time.perf_counter() - start))
        lines.append({"files": count, "manifest_kb": len(text) / 1e3, "open_ms": min(times)})
        print(f"a manifest of {count:7} files, {len(text) / 1e3:8.1f} kB: open {min(times):8.2f} ms", flush=True)
    return lines
