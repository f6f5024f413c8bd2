"""System failures: Ctrl-C in long work, a full disk, folders of other users, paths that are not stores."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from forests import grow

from agentrl_core import Batch, Forest, Store
from agentrl_core.exceptions import InvalidInputError, NotFoundError, StoreError

NODE = 128
NOBODY = 65_534


def rollouts(iteration: int, trajectories: int) -> Batch:
    """Return trajectories of 32 nodes each."""
    forest = Forest(iteration=iteration)
    forest.add_group(0, "task")
    handles = [forest.start(0, member) for member in range(trajectories)]
    rows = 32 * trajectories
    tokens = np.random.default_rng(iteration).integers(0, 1000, rows * NODE, dtype=np.int32)
    offsets = np.arange(rows + 1, dtype=np.int64) * NODE
    logprobs = (np.full(rows * NODE, -0.5, np.float32), offsets)
    forest.append_many(np.repeat(handles, 32), (tokens, offsets), kind=np.ones(rows, np.uint8), logprobs=logprobs)
    for handle in handles:
        forest.finish(handle, reward=1.0)
    return forest.freeze()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 100 MB, in files of 5 MB, which are too large to be merged while they are written."""
    folder = tmp_path_factory.mktemp("large") / "run"
    with Store.open(folder, sync="never") as store:
        for iteration in range(20):
            batch = store.rebase(rollouts(iteration, 150))
            store.append(batch, iteration=iteration)
            store.close_iteration(batch, {})
    return folder


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Send Ctrl-C after some CPU seconds of this process, independent of the machine's load."""
    # A shell without job control starts background jobs that ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    clock = signal.signal(signal.SIGPROF, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, clock)
        signal.signal(signal.SIGINT, before)


def interrupted(work: Callable[[], object], times: int = 8) -> list[bool]:
    """Interrupt work at different moments, until it completes first; return whether each time was interrupted."""
    done = []
    for moment in np.linspace(0.0, 1.0, times):
        broken = True
        try:
            with interrupted_after(0.01 + moment * 0.3):
                work()
                broken = False
        except KeyboardInterrupt:
            pass
        done.append(broken)
    return done


def test_interrupted_operations_leave_a_valid_store(large: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(large, folder)
    with Store.open(folder) as store:
        rows = len(store.nodes)
        assert any(interrupted(store.verify)), "a check of 100 MB takes longer than the first wait"
        interrupted(store.compact)
        interrupted(lambda: store.drop_before(min(store.iteration, 5)))
        assert store.verify() == []
        assert len(store.nodes) in (rows, rows * 15 // 20)
        with pytest.raises(NotFoundError) if len(store.nodes) < rows else pytest.raises(InvalidInputError):
            store.batch(0) if len(store.nodes) < rows else store.drop_before(21)
        assert store.batch(19).num_draws == 150
    with Store.open(folder) as store:
        assert store.verify() == []
        assert not list(folder.rglob("*.tmp"))


@pytest.mark.parametrize("call", ["append_many", "ingest"])
def test_an_ingest_that_is_broken_off_stored_nothing(call: str) -> None:
    forest = Forest()
    forest.add_group(0, "task")
    handles = [forest.start(0, member) for member in range(30_000)]
    rows = {"append_many": 1_200_000, "ingest": 300_000}[call]
    # No two outputs are equal: a repeated turn is rejected.
    outputs = (np.arange(4 * rows, dtype=np.int32), np.arange(rows + 1, dtype=np.int64) * 4)
    prompts = (np.ones(2 * rows, np.int32), np.arange(rows + 1, dtype=np.int64) * 2)
    logprobs = (np.full(4 * rows, -0.5, np.float32), outputs[1])
    trajectories = np.resize(handles, rows)

    def work() -> None:
        if call == "ingest":
            forest.ingest(trajectories, prompts, outputs, logprobs=logprobs)
        else:
            forest.append_many(trajectories, outputs, kind=np.full(rows, 2, np.uint8))

    # It checks for Ctrl-C every 50 ms, and takes longer than that.
    with pytest.raises(KeyboardInterrupt), interrupted_after(0.01):
        work()
    assert all(len(forest.tokens(handle)) == 0 for handle in handles[:64]), "all or nothing"
    work()
    assert all(len(forest.tokens(handle)) > 0 for handle in handles[:64])


@pytest.mark.timeout(600)
def test_a_freeze_that_is_broken_off_keeps_the_groups() -> None:
    forest = Forest()
    forest.add_group(0, "task")
    trunk = forest.start(0, 0)
    forest.append(trunk, [1, 2], kind="prompt")
    members = [trunk, *forest.fork(trunk, count=200_000)]
    rows = len(members)
    outputs = (np.arange(2 * rows, dtype=np.int32), np.arange(rows + 1, dtype=np.int64) * 2)
    forest.append_many(members, outputs, kind=np.ones(rows, np.uint8), reward=1.0)
    for member in members:
        forest.finish(member, reward=1.0)

    def broken_off(work: Callable[[], object]) -> None:
        # It checks for Ctrl-C every 50 ms, and takes longer than that.
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.01):
            work()

    broken_off(forest.freeze)
    assert len(forest) == 1
    assert forest.tokens(members[-1]).tolist() == [1, 2, 2 * rows - 2, 2 * rows - 1]
    batch = forest.freeze()
    assert batch.num_draws == rows
    broken_off(lambda: Batch.concat([batch] * 8))
    assert Batch.concat([batch, batch]).num_draws == 2 * rows


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_an_export_that_is_broken_off_leaves_no_file(large: Path, tmp_path: Path, form: str) -> None:
    target = tmp_path / f"rows.{form}"
    command = [sys.executable, "-m", "agentrl_core", "export", str(large), "--to", str(target)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 600
    while not list(tmp_path.iterdir()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, error_text = process.communicate(timeout=600)
    assert process.returncode == 130, error_text
    assert "Traceback" not in error_text
    assert not list(tmp_path.iterdir())


def in_child(work: Callable[[], None]) -> None:
    """Run work that changes the permissions of the process."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - nothing may get out of the child
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_folders_that_are_not_ours_are_named(tmp_path: Path) -> None:
    batch = grow(0)[0]
    with Store.open(tmp_path / "run") as store:
        store.append(batch, iteration=0)
    tmp_path.chmod(0o755)

    def denied() -> None:
        os.chdir(tmp_path)
        if os.geteuid() == 0:
            os.setuid(NOBODY)
        with pytest.raises(StoreError, match=r"cannot .*other: Permission denied"):
            Store.open("other")
        with pytest.raises(StoreError, match=r"cannot lock run/lock: Permission denied"):
            Store.open("run")
        # Users without write permission can still read.
        with Store.open("run", read_only=True) as reader:
            assert len(reader.nodes) == len(batch.nodes)
            assert reader.verify() == []

    for folder in (tmp_path / "run", tmp_path):
        folder.chmod(0o555)
    (tmp_path / "run" / "lock").chmod(0o444)
    try:
        in_child(denied)
    finally:
        for folder in (tmp_path / "run", tmp_path):
            folder.chmod(0o755)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def commits_until_it_fails(store: Store) -> int:
    """Append until the disk is full; return the iterations that were closed."""

    def go_on() -> None:
        while True:
            batch = store.rebase(rollouts(store.iteration, 8))
            store.append(batch, iteration=store.iteration)
            store.close_iteration(batch, {})

    with pytest.raises(StoreError, match=r"cannot write .*(No space left on device|File too large)"):
        go_on()
    closed = store.iteration
    assert closed > 0
    with pytest.raises(StoreError, match=r"cannot be written any more because a write failed: .*open it again"):
        store.flush()
    return closed


def whole_after(folder: Path, closed: int) -> None:
    """After reopening, it has every closed iteration, and continues."""
    with Store.open(folder) as store:
        assert store.iteration == closed
        assert store.verify() == []
        assert [store.batch(iteration).num_draws for iteration in range(closed)] == [8] * closed


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m"):
        store = Store.open(tmp_path / "disk" / "run")
        closed = commits_until_it_fails(store)
        with pytest.raises(StoreError, match="open it again"):
            store.flush()
        del store
        whole_after(tmp_path / "disk" / "run", closed)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_file_that_cannot_grow_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    def limited() -> None:
        # A write that fails in its middle, as on a full disk or at a quota.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
        store = Store.open(tmp_path / "run")
        closed = commits_until_it_fails(store)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        del store
        whole_after(tmp_path / "run", closed)

    in_child(limited)
    nodes = pl.scan_ipc(tmp_path / "run" / "nodes" / "*.arrow").collect()
    assert nodes["node_id"].to_list() == list(range(len(nodes)))


def test_paths_that_are_not_stores_are_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for read_only in (True, False):
        with pytest.raises((StoreError, NotFoundError), match="file"):
            Store.open(tmp_path / "file", read_only=read_only)
        with pytest.raises((StoreError, NotFoundError), match="file"):
            Store.open(tmp_path / "file" / "below", read_only=read_only)
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(StoreError, match="loop"):
        Store.open(tmp_path / "loop")
    # A link to a store is that store: both have one lock.
    with Store.open(tmp_path / "run") as store:
        (tmp_path / "link").symlink_to(tmp_path / "run")
        with pytest.raises(StoreError, match="is locked"):
            Store.open(tmp_path / "link")
        store.append(grow(0)[0], iteration=0)
    with Store.open(tmp_path / "link") as store:
        assert len(store.nodes) > 0
    # Other files in the directory stay.
    (tmp_path / "run" / "nodes" / "notes.txt").write_text("mine")
    (tmp_path / "run" / "config.json").write_text("{}")
    with Store.open(tmp_path / "run") as store:
        store.compact()
        assert store.verify() == []
    assert (tmp_path / "run" / "nodes" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "run" / "config.json").read_text() == "{}"
