"""A program that does a training loop's writes without training; it closes iterations until it is killed.

`python writer.py FOLDER [fork]`: prints `open N` and then `closed N` to standard output for every durable iteration.
With `fork`, a child that inherited the store lives on for an hour.

With `compact`, a thread merges files all the while.

`python writer.py FOLDER again`: for each line of standard input, a new process does the same and prints `process N`
first. The parent prints `died N`, with the signal that ended it, once the process is gone and all its output was read.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from agentrl_core import Batch, Forest, Store

TOKENS = 6


def print_line(word: str, number: int) -> None:
    """Print a line to the parent and flush."""
    sys.stdout.write(f"{word} {number}\n")
    sys.stdout.flush()


def tokens_of(iteration: int, member: int) -> list[int]:
    """Return the sampled tokens of a trajectory of an iteration."""
    return [(iteration * 31 + member * 7 + place) % 1000 for place in range(TOKENS)]


def grow(iteration: int) -> Batch:
    """Return four trajectories in two groups."""
    forest = Forest(iteration=iteration, seed=iteration)
    for group in range(2):
        forest.add_group(group, f"task {group}")
        for member in range(2):
            path = forest.start(group, member)
            forest.append(path, [1, 2, 3], kind="prompt")
            forest.append(path, tokens_of(iteration, 2 * group + member), kind="action", logprobs=[-0.5] * TOKENS)
            forest.step(path, reward=float(member))
            forest.finish(path, reward=float(member))
    return forest.freeze()


def train(store: Store) -> None:
    """Run one iteration: collect, commit, close, with the maintenance that a long run needs occasionally."""
    iteration = store.iteration
    if not store.has_batch(iteration):
        batch = grow(iteration)
        if iteration % 3 == 2:
            ids = [4 * (iteration - 1), 4 * (iteration - 2) + 1]
            batch = Batch.concat([batch, store.trajectory_batch(ids)]).with_draws(ids, source="replay")
        store.append(store.rebase(batch), iteration=iteration)
        store.flush()
        print_line("flushed", iteration)
    batch = store.batch(iteration)
    batch = batch.with_columns("draw", advantage=[0.5] * batch.num_draws)
    store.close_iteration(batch, {"iteration": iteration})
    print_line("closed", store.iteration)


def again() -> None:
    """Start one process after the other, without starting Python each time."""
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            print_line("process", os.getpid())
            write()
        print_line("died", -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def compact(store: Store) -> None:
    """Merge all mergeable files, repeatedly."""
    while True:
        store.compact()
        time.sleep(0.001)


def write() -> None:
    with Store.open(sys.argv[1]) as store:
        if "fork" in sys.argv[2:] and os.fork() == 0:
            time.sleep(3600)
            os._exit(0)
        print_line("open", store.iteration)
        if "compact" in sys.argv[2:]:
            threading.Thread(target=compact, args=(store,), daemon=True).start()
        while True:
            train(store)


if __name__ == "__main__":
    again() if "again" in sys.argv[2:] else write()
