"""Growth of a store by many small commits: their latency, time to open, bytes written beside bytes kept.

    python bench/store_growth.py [--iterations 5000] [--tokens 400] [--sync batch] [--columns alternating]

An iteration has four trajectories and two commits, like those of a loop: its rows, then the computed columns. At 100,
1 000 and 10 000 commits, a line shows the size of the store and the bytes written for it, which the system counts for
this process (`/proc/self/io`), manifest and merges included. Then the bench measures

- the latency of commits, a line for each thousand, and the last thousand over the first;
- the same for files of the same sizes that a few lines of Python write and sync at once, with folders and a manifest,
  and remove whenever the store removes files: a peer that follows each commit and does nothing else;
- opening, for reading and for writing: from files evicted from the page cache, and again from memory;
- the latency of commits while a thread merges files without a pause, in turns with commits without it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from common import Bench, counted, forget

import agentrl_core as arl
from agentrl_core import scan

MEMBERS, TURNS = 4, 3
# Commits of a turn with or without merging, and iterations in which the peer follows each commit.
BLOCK, BLOCKS, BESIDE_PEER = 50, 5, 250


def batch_of(iteration: int, tokens: int) -> arl.Batch:
    """Return four trajectories of one task."""
    rng = np.random.default_rng(iteration)
    forest = arl.Forest(iteration=iteration)
    forest.add_group(0, f"task {iteration % 100}")
    prompt = rng.integers(0, 50_000, 200, np.int32)
    for member in range(MEMBERS):
        path = forest.start(0, member)
        forest.append(path, prompt, kind="prompt")
        for _ in range(TURNS):
            action_tokens = rng.integers(0, 50_000, tokens // TURNS, np.int32)
            forest.append(path, action_tokens, kind="action", logprobs=-rng.random(len(action_tokens), np.float32))
            forest.step(path, reward=float(rng.integers(0, 2)))
        forest.finish(path, reward=float(rng.integers(0, 2)))
    return forest.freeze()


class Run:
    """A run in progress: each call of `train` is an iteration."""

    def __init__(self, store: arl.Store, tokens: int, *, alternating: bool) -> None:
        self.store, self._tokens, self._alternating = store, tokens, alternating

    def train(self) -> Iterator[float]:
        """Run one iteration; return the seconds of its two commits."""
        iteration = self.store.iteration
        batch = self.store.rebase(batch_of(iteration, self._tokens))
        begin = time.perf_counter()
        self.store.append(batch, iteration=iteration)
        self.store.flush()
        yield time.perf_counter() - begin
        weights = batch.token_weights(np.arange(batch.num_draws))
        batch = batch.with_columns("draw", advantage=np.arange(4.0)).with_columns("token", weight=weights)
        if self._alternating and iteration % 2:
            batch = batch.with_columns("draw", other=np.arange(4.0))
            batch = batch.with_columns("step", value=np.ones(MEMBERS * TURNS))
        state = {"iteration": iteration, "metrics": {"loss": 0.5, "reward": 0.25}}
        begin = time.perf_counter()
        self.store.close_iteration(batch, state)
        yield time.perf_counter() - begin


class Raw:
    """The peer: writes, syncs and removes files of the same sizes as the store's."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self._folder, self._sync = folder, sync
        self._threads = ThreadPoolExecutor(32)
        self._bytes = memoryview(bytes(80 << 20))
        self._kept: dict[Path, int] = {}

    def follow(self, sizes: dict[Path, int]) -> float:
        """Return the seconds to have exactly files of these sizes on disk, durably; the last one is a manifest."""
        begin = time.perf_counter()
        paths = [self._folder / name for name in sizes if name not in self._kept]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            _staged(path).write_bytes(self._bytes[: sizes[path.relative_to(self._folder)]])
        folders = {path.parent for path in paths}
        if self._sync:
            list(self._threads.map(_sync, [*map(_staged, paths), *folders]))
        for path in reversed(paths):
            _staged(path).rename(path)
            if self._sync and path == paths[-1]:
                _sync(path.parent)
        for name in self._kept.keys() - sizes.keys():
            (self._folder / name).unlink()
        self._kept = sizes
        return time.perf_counter() - begin


def _staged(path: Path) -> Path:
    return path.with_suffix(".tmp")


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def sizes_of(run: Path) -> dict[Path, int]:
    """Return the bytes of each file of a store, those of its manifest last."""
    sizes = {path.relative_to(run): path.stat().st_size for path in run.glob("*/*.arrow")}
    manifest = next((run / "manifest").glob("*.json"))
    return {**sizes, manifest.relative_to(run): manifest.stat().st_size}


@contextmanager
def merging(store: arl.Store) -> Iterator[list[tuple[float, int]]]:
    """Merge files in a thread during the block; yield the seconds of each merge, and by how many files it shrank."""
    ended, times = threading.Event(), []

    def again() -> None:
        while not ended.is_set():
            begin = time.perf_counter()
            fewer = store.compact()
            times.append((time.perf_counter() - begin, fewer))

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(again)
        yield times
        ended.set()
        future.result()


def quantiles(bench: Bench, name: str, seconds: list[float]) -> dict[str, float]:
    """Print and record a line of milliseconds."""
    at = dict(zip(("p50", "p99", "slowest"), 1e3 * np.quantile(seconds, [0.5, 0.99, 1.0]), strict=True))
    bench.lines.append({"work": name, "count": len(seconds), **{f"{key}_ms": value for key, value in at.items()}})
    print(f"{name:<52} {len(seconds):6}" + "".join(f"  {value:8.2f}" for value in at.values()), flush=True)
    return at


def grow(run: Run, path: Path, iterations: int) -> list[float]:
    """Train, print a line at each power of ten, and return the seconds of each commit."""
    seconds: list[float] = []
    before, reported = counted("wchar"), 0
    print("commits  files  kept MB  written MB  times  mean ms  slowest ms  manifest kB  open ms  scan ms")
    for _ in range(iterations):
        seconds += run.train()
        commits = len(seconds)
        if commits not in (100, 1000, 10_000, 2 * iterations):
            continue
        files = [file for file in path.rglob("*") if file.is_file()]
        file_bytes = sum(file.stat().st_size for file in files)
        total = counted("wchar") - before
        recent, reported = np.array(seconds[reported:]), commits
        begin = time.perf_counter()
        with arl.Store.open(path, read_only=True) as reader:
            assert reader.iteration == commits // 2
        opened = time.perf_counter() - begin
        begin = time.perf_counter()
        draws = scan(path).draw_columns.collect()
        scanned = time.perf_counter() - begin
        assert draws.height == MEMBERS * commits // 2
        manifest = next((path / "manifest").glob("*.json")).stat().st_size
        print(
            f"{commits:7}  {len(files):5}  {file_bytes / 1e6:7.1f}  {total / 1e6:10.1f}  {total / file_bytes:5.1f}"
            f"  {1e3 * recent.mean():7.1f}  {1e3 * recent.max():10.1f}  {manifest / 1e3:11.1f}"
            f"  {1e3 * opened:7.1f}  {1e3 * scanned:7.1f}",
            flush=True,
        )
    return seconds


def beside_raw(bench: Bench, run: Run, path: Path, raw: Raw, iterations: int) -> None:
    """Measure commits, each followed by the peer's commit of the same bytes."""
    ours, theirs = [], []
    raw.follow(sizes_of(path))
    for _ in range(iterations):
        for seconds in run.train():
            ours.append(seconds)
            theirs.append(raw.follow(sizes_of(path)))
    mine = quantiles(bench, "commits in turns with the peer's", ours)
    other = quantiles(bench, "the peer: the same files, with the same syncs", theirs)
    bench.lines.append({"work": "commit over the peer", "p50": mine["p50"] / other["p50"]})
    print(f"{'a commit takes so many times the peer, p50':<52} {mine['p50'] / other['p50']:17.2f}")


def beside_merging(bench: Bench, run: Run) -> None:
    """Measure commits in turns with and without a merging thread."""
    alone: list[float] = []
    beside: list[float] = []
    times: list[tuple[float, int]] = []
    for _ in range(BLOCKS):
        for _ in range(BLOCK):
            alone += run.train()
        with merging(run.store) as merged:
            for _ in range(BLOCK):
                beside += run.train()
        times += merged
    one, two = quantiles(bench, "commits, nothing beside", alone), quantiles(bench, "commits, merging beside", beside)
    longest, fewer = max(seconds for seconds, _ in times), sum(count for _, count in times)
    ratio = {"p50": two["p50"] / one["p50"], "p99": two["p99"] / one["p99"]}
    bench.lines.append(
        {"work": "merging beside", "times": len(times), "files_fewer": fewer, "longest_ms": 1e3 * longest, **ratio}
    )
    print(f"{len(times)} merges beside, {fewer} files fewer, the longest {1e3 * longest:.0f} ms")
    print(f"{'merging beside over nothing beside':<52}        {ratio['p50']:8.2f}  {ratio['p99']:8.2f}")


def opening(bench: Bench, path: Path, runs: int = 20) -> None:
    """Measure opening a store that is not open elsewhere."""
    for how, options in (("reading", {"read_only": True}), ("writing", {})):
        for state in ("forgotten", "warm"):
            seconds = []
            for _ in range(runs):
                if state == "forgotten":
                    forget(path)
                begin = time.perf_counter()
                arl.Store.open(path, **options).close()
                seconds.append(time.perf_counter() - begin)
            quantiles(bench, f"open for {how}, files {state}", seconds)


def main() -> None:
    """Grow a store, then measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--sync", choices=("batch", "always", "never"), default="batch")
    parser.add_argument("--columns", choices=("same", "alternating"), default="same")
    parser.add_argument("--folder", help="where to write; a temporary folder unless it is given")
    options = parser.parse_args()
    bench = Bench("store_growth")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "run"
        with arl.Store.open(path, sync=options.sync) as store:
            run = Run(store, options.tokens, alternating=options.columns == "alternating")
            seconds = grow(run, path, options.iterations)
            print(f"{'ms':<52}  count       50%       99%   slowest")
            thousand = min(1000, len(seconds))
            table: list[dict[str, Any]] = [
                quantiles(bench, f"commits {first + 1} to {first + thousand}", seconds[first : first + thousand])
                for first in range(0, len(seconds) - thousand + 1, thousand)
            ]
            ratio = {name: table[-1][name] / table[0][name] for name in ("p50", "p99")}
            bench.lines.append({"work": "last thousand over first", **ratio})
            print(f"{'the last thousand over the first':<52}        {ratio['p50']:8.2f}  {ratio['p99']:8.2f}")
            raw = Raw(Path(folder) / "raw", sync=options.sync != "never")
            beside_raw(bench, run, path, raw, min(BESIDE_PEER, options.iterations))
            shutil.rmtree(Path(folder) / "raw")
        opening(bench, path)
        with arl.Store.open(path, sync=options.sync) as store:
            beside_merging(bench, Run(store, options.tokens, alternating=options.columns == "alternating"))
            assert store.verify() == []
    bench.write()


if __name__ == "__main__":
    main()
