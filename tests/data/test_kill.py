"""Kill a real process at random moments: acknowledged data is never lost, and other tools can always read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from stores import scan
from writer import tokens_of

from agentrl_core import Store

SUPPORT = Path(__file__).parents[1] / "support"
FACTS = ("nodes", "steps", "trajectories", "draws")


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SUPPORT / "writer.py"), str(folder), *options]
    stdin = subprocess.PIPE if "again" in options else None
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True)


def killed(writers: subprocess.Popen[str], words: int, seconds: float) -> list[tuple[str, int]]:
    """Kill a writer a few words and seconds after it has opened the store; return its output."""
    events: list[tuple[str, int]] = []

    def hear() -> None:
        word, number = writers.stdout.readline().split()
        events.append((word, int(number)))

    def listen(last: str) -> None:
        while not events or events[-1][0] != last:
            hear()

    writers.stdin.write("\n")
    writers.stdin.flush()
    listen("process")
    process = events[-1][1]
    listen("open")
    for _ in range(words):
        hear()
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    listen("died")
    assert events[-1][1] == signal.SIGKILL
    return events


def check_scan(folder: Path) -> int:
    """Check that Polars reads complete rows from the folders at any moment; return the number of trajectories.

    Raises:
        FileNotFoundError: files were just being merged.
        PolarsError: the same.
    """
    # Rows refer to rows of tables read later, which can only have grown.
    draws, trajectories = scan(folder / "draws"), scan(folder / "trajectories")
    steps, nodes = scan(folder / "steps"), scan(folder / "nodes")
    if not len(draws):
        return 0
    assert nodes["node_id"].to_list() == list(range(len(nodes)))
    assert draws["draw_id"].to_list() == list(range(len(draws)))
    assert trajectories["trajectory_id"].to_list() == list(range(len(trajectories)))
    assert set(draws["trajectory_id"]) <= set(trajectories["trajectory_id"])
    assert set(trajectories["leaf_node_id"]) <= set(nodes["node_id"])
    assert set(steps["node_id"]) <= set(nodes["node_id"])
    actions = nodes.filter(pl.col("kind") == 1)["tokens"].to_list()
    assert all(tokens == tokens_of(row // 4, row % 4) for row, tokens in enumerate(actions))
    return len(trajectories)


@contextmanager
def reading(folder: Path) -> Iterator[list[int]]:
    """Scan continuously; return the number of trajectories of each scan."""
    counts: list[int] = []
    exchanges: list[int] = []
    failures: list[Exception] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                counts.append(check_scan(folder))
            except (FileNotFoundError, pl.exceptions.PolarsError):
                exchanges.append(len(counts))
            except (AssertionError, OSError) as error:
                failures.append(error)
                return
            # The tests are about timing, and a busy reader would slow the writers down.
            stop.wait(0.02)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield counts
    finally:
        stop.set()
        thread.join()
    assert not failures, failures[0]
    assert counts == sorted(counts), "rows never go away"
    assert len(exchanges) < len(counts) / 4, "an error is rare: files are exchanged in a moment"


@pytest.mark.slow
@pytest.mark.parametrize("kills", [40, pytest.param(200, marks=pytest.mark.full)])
def test_nothing_acknowledged_is_lost_in_many_kills(tmp_path: Path, kills: int) -> None:
    rng = np.random.default_rng(0)
    closed = flushed = 0
    moments = set()
    with reading(tmp_path) as counts, start(tmp_path, "again") as writers:
        for _ in range(kills):
            for word, number in killed(writers, int(rng.integers(0, 3)), rng.uniform(0.0, 0.02)):
                closed = max(closed, number) if word in ("open", "closed") else closed
                flushed = max(flushed, number + 1) if word == "flushed" else flushed
            try:
                check_scan(tmp_path)
            except pl.exceptions.PolarsError:
                # Killed while files were exchanged: other tools get an error until the next open.
                assert any((tmp_path / name / "0-being-rewritten.arrow").exists() for name in FACTS)
            has_temporary = bool(list(tmp_path.rglob("*.tmp")))
            with Store.open(tmp_path, read_only=True) as store:
                assert store.iteration in (closed, closed + 1), "the last close may be done with nobody left to say so"
                assert flushed <= store.iteration or store.has_batch(flushed - 1)
                for iteration in range(max(store.iteration - 3, 0), store.iteration):
                    batch = store.batch(iteration)
                    assert batch.column("advantage", "draw").tolist() == [0.5] * batch.num_draws
                    expected = [token for member in range(4) for token in tokens_of(iteration, member)]
                    assert batch.column("token", "token").tolist()[: len(expected)] == expected
                moments.add((has_temporary, store.has_batch(store.iteration)))
        writers.stdin.close()
        assert writers.wait() == 0
    assert len(moments) >= 3, "killed inside of commits, between them, and between a batch and its close"
    assert len(set(counts)) > 10, "the reader saw it grow"
    with Store.open(tmp_path) as store:
        assert store.verify() == []
        assert not list(tmp_path.rglob("*.tmp"))
        for name in FACTS:
            assert scan(tmp_path / name).equals(pl.DataFrame(getattr(store, name)), null_equal=True)
        for iteration in range(store.iteration):
            assert store.batch(iteration).num_draws == (6 if iteration % 3 == 2 else 4)


def test_a_process_is_killed_while_it_merges_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    closed = kills = merging = 0
    with start(tmp_path, "again", "compact") as writers:
        while kills < 20 or (merging == 0 and kills < 300):
            for word, number in killed(writers, int(rng.integers(0, 6)), rng.uniform(0.0, 0.02)):
                closed = max(closed, number) if word in ("open", "closed") else closed
            kills += 1
            merging += bool(list(tmp_path.rglob("*.merged.tmp")))
            with Store.open(tmp_path, read_only=True) as store:
                assert store.iteration in (closed, closed + 1)
                for iteration in range(max(store.iteration - 3, 0), store.iteration):
                    tokens = store.batch(iteration).column("token", "token").tolist()
                    assert tokens[:24] == [token for member in range(4) for token in tokens_of(iteration, member)]
        writers.stdin.close()
        assert writers.wait() == 0
    assert merging > 0, "killed with merged files that did not count yet"
    with Store.open(tmp_path) as store:
        assert store.verify() == []
        assert not list(tmp_path.rglob("*.tmp"))
        assert all(store.has_batch(iteration) for iteration in range(store.iteration))


def test_a_killed_writer_frees_the_lock_while_its_worker_lives(tmp_path: Path) -> None:
    process = start(tmp_path, "fork")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("open")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    with pytest.raises(OSError, match="is locked"):
        Store.open(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        os.kill(int(children[0]), 0)
        with Store.open(tmp_path) as store:
            assert store.verify() == []
        os.kill(int(children[0]), 0)
    finally:
        os.kill(int(children[0]), signal.SIGKILL)
        process.stdout.close()
