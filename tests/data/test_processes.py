"""Processes: PyTorch loaders started in each way, and children forked while threads are inside the library."""

from __future__ import annotations

import copy
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from forests import grow, grow_member
from loading import ITERATIONS, Iterations

import agentrl_core as arl
from agentrl_core import Forest, Store, advantage

SECONDS = 600
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def filled(path: Path) -> Store:
    store = Store.open(path)
    for iteration in range(ITERATIONS):
        batch = store.rebase(grow(iteration, iteration=iteration)[0])
        store.append(batch, iteration=iteration)
        store.close_iteration(batch.with_columns("draw", advantage=np.arange(float(batch.num_draws))), {})
    return store


def forked(work: Callable[[], object]) -> int:
    """Run work in a child forked at this moment; return its exit, or kill it if it hangs."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - nothing may get out of the child
            sys.stderr.write(f"{error!r}\n")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + SECONDS
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(ended[1])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_loader_reads_a_store_in_its_workers(tmp_path: Path, method: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    with filled(tmp_path) as store:
        # A worker gets a reader, however it was started: a writer stays in its process.
        dataset = Iterations(copy.copy(store), store.batch(0))
        loader = data.DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
        rows = list(loader)
        assert len({row[0] for row in rows} | {os.getpid()}) == 3
        assert [row[1:] for row in rows] == [dataset[iteration][1:] for iteration in range(ITERATIONS)]
        with pytest.raises(arl.exceptions.InvalidInputError, match="open for reading only"):
            dataset.store.append(dataset.batch, iteration=9)


@contextmanager
def busy(*works: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Threads that repeat some work."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


def test_children_forked_in_the_middle_of_calls_work(tmp_path: Path) -> None:
    """Kernels with several threads, appends, freezes, commits and reads are in progress at the moment of every fork."""
    store = filled(tmp_path / "run")
    reader = copy.copy(store)
    batch = grow(9)[0]
    rewards, groups = np.random.default_rng(0).random(400_000), np.repeat(np.arange(4000), 100)
    expected = advantage.group_relative(rewards, groups)
    text, tokens = pickle.dumps(batch), batch.column("token", "token")

    def fork_safe() -> None:
        np.testing.assert_array_equal(advantage.group_relative(rewards, groups), expected)
        forest = Forest()
        forest.add_group(0, "task")
        grow_member(forest, 0, 0)
        assert len(forest.freeze().nodes) > 4
        # Polars is not used here: its own threads do not survive a fork.
        np.testing.assert_array_equal(pickle.loads(text).column("token", "token"), tokens)
        with Store.open(tmp_path / "run", read_only=True) as mine:
            assert len(mine.batch(1).draws) == len(store_batch.draws)
        assert pickle.loads(snapshot).batch(1).num_draws == store_batch.num_draws
        with pytest.raises(arl.exceptions.UnsupportedError, match="forked from it; open it again here"):
            store.flush()
        with pytest.raises(arl.exceptions.StoreError, match="is locked"):
            Store.open(tmp_path / "run")
        with Store.open(tmp_path / str(os.getpid())) as child_store:
            child_store.append(pickle.loads(text), iteration=0)
            assert child_store.verify() == []
        assert len(batch.column("token", "token")) > 0

    def collect() -> None:
        forest = Forest()
        forest.add_group(0, "task")
        grow_member(forest, 0, 0)
        forest.freeze()

    def commit() -> None:
        with Store.open(tmp_path / "other") as other:
            other.append(other.rebase(batch), iteration=0)
            commits.append(len(commits))

    commits: list[int] = []

    store_batch, snapshot = store.batch(1), pickle.dumps(store)
    kernel = lambda: advantage.group_relative(rewards, groups)  # noqa: E731 - one of several works
    arl.set_num_threads(4)
    try:
        with busy(kernel, kernel, collect, commit, lambda: store.batch(2), lambda: reader.batch(3)):
            assert [forked(fork_safe) for _ in range(12)] == [0] * 12
            deadline = time.monotonic() + SECONDS
            while len(commits) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        assert len(commits) >= 2
    finally:
        arl.set_num_threads(os.cpu_count() or 1)
        store.close()


def test_a_lock_that_is_about_to_be_given_up_is_waited_for(tmp_path: Path) -> None:
    """The lock is held by a forked child that has not run since its writer was killed."""
    Store.open(tmp_path).close()
    with (tmp_path / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = threading.Timer(0.1, fcntl.flock, (file, fcntl.LOCK_UN))
        child.start()
        with Store.open(tmp_path) as store:
            assert store.verify() == []
        child.join()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(arl.exceptions.StoreError, match="is locked"):
            Store.open(tmp_path)


HOOKS = """
import os, sys
first = lambda: None
os.register_at_fork(before=lambda: first(), after_in_parent=lambda: first(), after_in_child=lambda: first())
from agentrl_core import Store
folder = sys.argv[1]
held, passing = Store.open(folder + "/held"), []

def first():
    # What a hook, or a garbage collection in it, can do: close a store and open another, here and in the child.
    while passing:
        passing.pop().close()
    passing.append(Store.open(folder + f"/passing-{os.getpid()}"))

child = os.fork()
if not child:
    Store.open(folder + "/own").close()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    Store.open(folder + "/held")
except OSError as error:
    print("is locked" in str(error))
held.close()
Store.open(folder + "/held").close()
print(os.path.exists(folder + "/own/lock"))
"""


def test_stores_are_opened_and_closed_by_hooks_of_a_fork(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOOKS, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert ended.stdout.split() == ["0", "True", "True"], ended.stderr


def test_a_forest_that_was_being_changed_is_refused_in_a_forked_child() -> None:
    forest = Forest()
    forest.add_group(0, "task")
    handle = forest.start(0, 0)
    forest.append(handle, [1], kind="prompt")
    outcomes = []

    def use() -> None:
        try:
            forest.append(handle, [2], kind="observation")
        except arl.exceptions.UnsupportedError as error:
            os._exit(3 if "while a thread was inside this Forest" in str(error) else 4)
        # State that was not being changed is intact, and the child's own from then on.
        assert forest.tokens(handle)[-1] == 2
        forest.finish(handle, status="aborted")
        assert len(forest.freeze().trajectories) == 1

    assert forked(use) == 0
    sizes = np.full(60_000, 8)
    chats = (np.ones(int(sizes.sum()), np.int32), np.concatenate([[0], np.cumsum(sizes)]))
    handles, kinds = np.full(len(sizes), handle), np.full(len(sizes), 2, np.uint8)

    def append() -> None:
        forest.append_many(handles, chats, kind=kinds)
        time.sleep(0.05)  # so that some are forked between two calls, and the forest stays small

    with busy(append):
        deadline = time.monotonic() + SECONDS
        while not {0, 3} <= set(outcomes) and time.monotonic() < deadline:
            outcomes.append(forked(use))
    assert set(outcomes) <= {0, 3}
    assert 3 in outcomes, "some were forked in the middle of a call"
    assert forest.tokens(handle)[0] == 1, "the parent goes on"
