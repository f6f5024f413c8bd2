"""How a store grows under many small commits: bytes written beside bytes kept, the latency of a commit, files.

    python bench/store_growth.py [--iterations 5000] [--tokens 400] [--sync batch] [--columns alternating] [--beside]

An iteration has four trajectories and is two commits, as a loop makes them: its rows, then what was computed for them.
Bytes written are those that the system counts for this process (`/proc/self/io`), the manifest and all that is merged
included. At 100, 1 000 and 10 000 commits it prints the mean latency of the commits since the last line, and the
slowest one: merges make some slow, few of them. With `--beside` one thread merges files every two seconds, and
another opens the store and reads it all the time; at the end stand quantiles of the first and last thousand commits,
and of the readings.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import agentrl_core as arl
from agentrl_core.integrations.polars import scan

MEMBERS, TURNS = 4, 3


def batch_of(iteration: int, tokens: int) -> arl.Batch:
    """Four trajectories of one task."""
    rng = np.random.default_rng(iteration)
    forest = arl.Forest(iteration=iteration)
    forest.add_group(0, f"task {iteration % 100}")
    prompt = rng.integers(0, 50_000, 200, np.int32)
    for member in range(MEMBERS):
        path = forest.start(0, member)
        forest.append(path, prompt, kind="prompt")
        for _ in range(TURNS):
            said = rng.integers(0, 50_000, tokens // TURNS, np.int32)
            forest.append(path, said, kind="action", logprobs=-rng.random(len(said), np.float32))
            forest.step(path, reward=float(rng.integers(0, 2)))
        forest.finish(path, reward=float(rng.integers(0, 2)))
    return forest.freeze()


def written() -> int:
    """Bytes that this process has written so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def train(store: arl.Store, iteration: int, tokens: int, *, alternating: bool) -> tuple[float, float]:
    """One iteration; the seconds of its two commits."""
    batch = store.rebase(batch_of(iteration, tokens))
    begin = time.perf_counter()
    store.append(batch, iteration=iteration)
    store.flush()
    middle = time.perf_counter()
    weights = batch.token_weights(np.arange(batch.num_draws))
    batch = batch.with_columns("draw", advantage=np.arange(4.0)).with_columns("token", weight=weights)
    if alternating and iteration % 2:
        batch = batch.with_columns("draw", other=np.arange(4.0)).with_columns("step", value=np.ones(MEMBERS * TURNS))
    state = {"iteration": iteration, "metrics": {"loss": 0.5, "reward": 0.25}}
    late = time.perf_counter()
    store.close_iteration(batch, state)
    return middle - begin, time.perf_counter() - late


class Beside:
    """What goes on beside the commits: merging, and reading what is there."""

    def __init__(self, store: arl.Store, run: Path) -> None:
        self.fewer, self.merges = 0, 0
        self.reads: list[float] = []
        self._store, self._run = store, run
        self._ended = threading.Event()
        self._threads = ThreadPoolExecutor(2)
        works = ((self._merge, 2.0), (self._read, 0.05))
        self._begun = [self._threads.submit(self._again, work, pause) for work, pause in works]

    def end(self) -> None:
        """Let both come to their end, and say what went wrong."""
        self._ended.set()
        for work in self._begun:
            work.result()
        self._threads.shutdown()

    def _again(self, work: Callable[[], None], pause: float) -> None:
        while not self._ended.wait(pause):
            work()

    def _merge(self) -> None:
        self.fewer += self._store.compact()
        self.merges += 1

    def _read(self) -> None:
        begin = time.perf_counter()
        with arl.Store.open(self._run, read_only=True) as reader:
            if reader.iteration:
                batch = reader.batch(reader.iteration - 1)
                assert batch.num_draws == MEMBERS
        self.reads.append(time.perf_counter() - begin)


def quantiles(name: str, seconds: list[float]) -> None:
    """One line of milliseconds."""
    at = np.quantile(seconds, [0.5, 0.9, 0.99, 1.0])
    print(f"{name:<34} {len(seconds):6}" + "".join(f"  {1e3 * value:8.2f}" for value in at), flush=True)


def main() -> None:
    """Train, and print a line at each power of ten."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--sync", choices=("batch", "always", "never"), default="batch")
    parser.add_argument("--columns", choices=("same", "alternating"), default="same")
    parser.add_argument("--folder")
    parser.add_argument("--beside", action="store_true", help="merge files and read, in threads")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        run = Path(folder) / "run"
        seconds: list[float] = []
        shown = 0
        before = written()
        print("commits  files  kept MB  written MB  times  mean ms  slowest ms  manifest kB  open ms  scan ms")
        with arl.Store.open(run, sync=options.sync) as store:
            beside = Beside(store, run) if options.beside else None
            for iteration in range(options.iterations):
                seconds += train(store, iteration, options.tokens, alternating=options.columns == "alternating")
                commits = len(seconds)
                if commits not in (100, 1000, 10_000, 2 * options.iterations):
                    continue
                files = [path for path in run.rglob("*") if path.is_file()]
                kept = sum(path.stat().st_size for path in files)
                total = written() - before
                recent = np.array(seconds[shown:])
                shown = commits
                begin = time.perf_counter()
                with arl.Store.open(run, read_only=True) as reader:
                    assert reader.iteration == iteration + 1
                opened = time.perf_counter() - begin
                begin = time.perf_counter()
                draws = scan(run).draw_columns.collect()
                scanned = time.perf_counter() - begin
                assert draws.height == MEMBERS * (iteration + 1)
                manifest = next((run / "manifest").glob("*.json")).stat().st_size
                print(
                    f"{commits:7}  {len(files):5}  {kept / 1e6:7.1f}  {total / 1e6:10.1f}  {total / kept:5.1f}"
                    f"  {1e3 * recent.mean():7.1f}  {1e3 * recent.max():10.1f}  {manifest / 1e3:11.1f}"
                    f"  {1e3 * opened:7.1f}  {1e3 * scanned:7.1f}",
                    flush=True,
                )
            if beside is not None:
                beside.end()
            assert store.verify() == []
    print(f"{'ms':<34}  count       50%       90%       99%   slowest")
    # Every other commit closes an iteration.
    for kind, own in (("rows", seconds[::2]), ("closed iteration", seconds[1::2])):
        quantiles(f"{kind}, first 1000 commits", own[:500])
        quantiles(f"{kind}, last 1000 commits", own[-500:])
    if beside is not None:
        quantiles("opened and last batch read, first", beside.reads[: len(beside.reads) // 10 or 1])
        quantiles("opened and last batch read, last", beside.reads[-len(beside.reads) // 10 :])
        print(f"{beside.merges} merges beside, {beside.fewer} files fewer")


if __name__ == "__main__":
    main()
