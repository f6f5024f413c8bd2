"""Memory freed by a thread is returned to the system."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agentrl_core.collect import event_loop as freed

BLOCKS, BYTES = 60_000, 1000


def resident() -> int:
    """Return the bytes of memory of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(freed._trim() is None, reason="the C library is another one")
def test_memory_freed_by_a_thread_is_returned_to_the_system() -> None:
    blocks: list[bytes] = []
    thread = threading.Thread(target=lambda: blocks.extend(bytes(BYTES) for _ in range(BLOCKS)))
    thread.start()
    thread.join()
    del blocks[:-1]  # the last one keeps the memory of all before it
    before = resident()
    freed.trim_heap(1000)
    assert resident() > before - BLOCKS * BYTES // 2, "of a small batch nothing is looked for"
    freed.trim_heap(1 << 20)
    assert resident() < before - BLOCKS * BYTES // 2
    assert blocks == [bytes(BYTES)]


def test_trimming_does_nothing_with_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed, "_trim", lambda: None)
    assert freed._trim() is None
    freed.trim_heap(1 << 20)
