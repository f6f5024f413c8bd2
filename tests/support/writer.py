"""A training loop's writes without the training: run as a program, it closes iterations until it is killed.

`python writer.py FOLDER [fork]`: says `open N` and then `closed N` on standard output for every iteration that is
durable. With `fork`, a child that inherited the store lives on for an hour.

With `compact`, a thread merges files all the while.

`python writer.py FOLDER again`: for every line of standard input, a new process does the same, which says `process N`
first; `died N` with the signal that ended it says that it is gone, and that all that it said came before.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from agentrl_core import Batch, Forest, Store

TOKENS = 6


def say(word: str, number: int) -> None:
    """Tell the parent, at once."""
    sys.stdout.write(f"{word} {number}\n")
    sys.stdout.flush()


def tokens_of(iteration: int, member: int) -> list[int]:
    """What a trajectory of an iteration sampled."""
    return [(iteration * 31 + member * 7 + place) % 1000 for place in range(TOKENS)]


def grow(iteration: int) -> Batch:
    """Four trajectories in two groups."""
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
    """One iteration: collect, commit, close, with the upkeep that a long run needs now and then."""
    iteration = store.iteration
    if not store.has_batch(iteration):
        batch = grow(iteration)
        if iteration % 3 == 2:
            ids = [4 * (iteration - 1), 4 * (iteration - 2) + 1]
            batch = Batch.concat([batch, store.trajectory_batch(ids)]).with_draws(ids, source="replay")
        store.append(store.rebase(batch), iteration=iteration)
        store.flush()
        say("flushed", iteration)
    batch = store.batch(iteration)
    batch = batch.with_columns("draw", advantage=[0.5] * batch.num_draws)
    store.close_iteration(batch, {"iteration": iteration})
    say("closed", store.iteration)


def again() -> None:
    """One process after the other, without starting Python each time."""
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            say("process", os.getpid())
            write()
        say("died", -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def compact(store: Store) -> None:
    """Merge whatever can be merged, again and again."""
    while True:
        store.compact()
        time.sleep(0.001)


def write() -> None:
    with Store.open(sys.argv[1]) as store:
        if "fork" in sys.argv[2:] and os.fork() == 0:
            time.sleep(3600)
            os._exit(0)
        say("open", store.iteration)
        if "compact" in sys.argv[2:]:
            threading.Thread(target=compact, args=(store,), daemon=True).start()
        while True:
            train(store)


if __name__ == "__main__":
    again() if "again" in sys.argv[2:] else write()
