"""Files are merged in a thread of its own: nobody waits for it, and nobody sees it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
from stores import assert_same_as_trained, trained

from agentrl_core import Batch, Store


def test_a_run_goes_on_while_its_files_are_merged(tmp_path: Path) -> None:
    stop = threading.Event()
    with Store.open(tmp_path, sync="never") as store, ThreadPoolExecutor(2) as threads:

        def merge() -> int:
            fewer = 0
            while not stop.is_set():
                fewer += store.compact()
            return fewer

        def read() -> int:
            """What a reader sees grows, and is what was trained."""
            reader, reads = Store.open(tmp_path, read_only=True), 0
            while not stop.is_set():
                reader.refresh()
                last = reader.iteration - 1
                if last in batches:
                    assert_same_as_trained(reader.batch(last), batches[last])
                    reads += 1
            return reads

        batches: dict[int, Batch] = {}
        merging = reading = None
        for iteration in range(40):
            batches[iteration] = trained(store, iteration)
            if merging is None:
                merging, reading = threads.submit(merge), threads.submit(read)
        stop.set()
        assert merging.result() > 0, "it merged something meanwhile"
        assert reading.result() > 0
        for iteration, expected in batches.items():
            assert_same_as_trained(store.batch(iteration), expected)
        assert store.verify() == []
        assert len(pl.scan_ipc(tmp_path / "nodes" / "*.arrow").collect()) == len(store.nodes)
