"""Files are merged in a background thread, without waits or visible changes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
from stores import assert_same_as_trained, trained

from agentrl_core import Batch, Store


def test_a_run_continues_while_its_files_are_merged(tmp_path: Path) -> None:
    stop = threading.Event()
    with Store.open(tmp_path, sync="never") as store, ThreadPoolExecutor(2) as threads:

        def merge() -> None:
            while not stop.is_set():
                merged.append(store.compact())

        def read() -> None:
            """A reader sees a growing store with exactly the trained rows."""
            reader = Store.open(tmp_path, read_only=True)
            while not stop.is_set():
                reader.refresh()
                last = reader.iteration - 1
                if last in batches:
                    assert_same_as_trained(reader.batch(last), batches[last])
                    reads.append(last)

        batches: dict[int, Batch] = {}
        merged: list[int] = []
        reads: list[int] = []
        works = []
        for iteration in range(400):
            batches[iteration] = trained(store, iteration)
            works = works or [threads.submit(merge), threads.submit(read)]
            if iteration >= 40 and sum(merged) and reads:
                break
        stop.set()
        for work in works:
            work.result()
        assert sum(merged) > 0, "it merged something meanwhile"
        assert reads
        for iteration, expected in batches.items():
            assert_same_as_trained(store.batch(iteration), expected)
        assert store.verify() == []
        assert len(pl.scan_ipc(tmp_path / "nodes" / "*.arrow").collect()) == len(store.nodes)
