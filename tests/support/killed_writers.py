"""A program that appends records of rollout logs and commits iterations until it is killed.

`python killed_writers.py FOLDER COUNTER`: for each line of standard input, a new process opens the store of FOLDER,
prints `process N` and continues after the previous one; `died N` gives the signal that ended it. The file COUNTER
always has the latest `place`, including one written right before a kill.

The counter is written through a memoryview: one store of eight bytes, whole whenever the kill comes. `struct.pack_into`
clears the bytes before it writes them one by one, so a kill between the two would leave a smaller number.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from pathlib import Path

from writer import grow, print_line

from agentrl_core import Store

RECORDS = 1000


def record(iteration: int, number: int) -> tuple[bytes, bytes]:
    """Return the record of a number: name and payload, of 0 to 1000 bytes."""
    return f"{iteration}/{number}".encode(), bytes(
        (iteration + number + byte) % 251 for byte in range(37 * number % 1001)
    )


def place(counter: Path) -> tuple[int, int]:
    """Return the open iteration, and the number of its appended records."""
    return divmod(struct.unpack("q", counter.read_bytes())[0], RECORDS + 1)


def write(folder: str, counter: memoryview) -> None:
    """Append and commit forever."""
    with Store.open(folder) as store:
        print_line("process", os.getpid())
        while True:
            iteration = store.iteration
            if not store.has_batch(iteration):
                log = store.rollout_log(iteration)
                count = len(log.records())
                counter[0] = iteration * (RECORDS + 1) + count
                for number in range(count, RECORDS):
                    log.append(*record(iteration, number))
                    counter[0] = iteration * (RECORDS + 1) + number + 1
                store.append(store.rebase(grow(iteration)), iteration=iteration)
                store.flush()
            store.close_iteration(store.batch(iteration), {})


def again(folder: str, counter: str) -> None:
    """Start one process after the other, without starting Python each time."""
    with Path(counter).open("r+b") as file:
        shared = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            write(folder, shared)
        print_line("died", -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    again(*sys.argv[1:])
