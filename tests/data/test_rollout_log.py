"""The rollout log of an iteration in progress, in a real process that is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from forests import grow
from killed_writers import RECORDS, place, record

from agentrl_core import Store
from agentrl_core.exceptions import InvalidInputError, UnsupportedError

SUPPORT = Path(__file__).parents[1] / "support"
KILLS = 50


def test_no_record_is_lost_or_half_in_fifty_kills(tmp_path: Path) -> None:
    folder, counter = tmp_path / "run", tmp_path / "counter"
    counter.write_bytes(bytes(8))
    command = [sys.executable, str(SUPPORT / "killed_writers.py"), str(folder), str(counter)]
    rng = np.random.default_rng(0)
    moments = set()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        for kill in range(KILLS):
            writers.stdin.write("\n")
            writers.stdin.flush()
            word, process = writers.stdout.readline().split()
            assert word == "process"
            start_place, _ = place(counter)
            while kill % 10 == 9 and place(counter)[0] == start_place:
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, 0.03))
            os.kill(int(process), signal.SIGKILL)
            assert writers.stdout.readline().split() == ["died", str(int(signal.SIGKILL))]
            iteration, count = place(counter)
            with Store.open(folder) as store:
                assert iteration <= store.iteration <= iteration + 1
                if store.has_batch(store.iteration):
                    moments.add("between batch and close")
                    with pytest.raises(InvalidInputError, match="its rollout log closed"):
                        store.rollout_log(store.iteration)
                    assert not list((folder / "live").iterdir())
                    continue
                records = store.rollout_log(store.iteration).records()
                assert records == [record(store.iteration, number) for number in range(len(records))]
                if store.iteration == iteration:
                    assert count <= len(records) <= count + 1
                    moments.add("in the middle" if 0 < count < RECORDS else "at an end")
                assert store.verify() == []
        writers.stdin.close()
        assert writers.wait() == 0
    assert "in the middle" in moments
    assert Store.open(folder, read_only=True).iteration >= KILLS // 10, "rollout logs were ended and begun"


def test_a_copy_of_a_run_has_its_log(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run") as store:
        log = store.rollout_log(0)
        log.append(b"name", b"payload")
        assert log.iteration == 0
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        log.append(b"name", b"of the first alone")
    with Store.open(tmp_path / "copy") as copy:
        assert copy.rollout_log(0).records() == [(b"name", b"payload")]
        copy.append(copy.rebase(grow(0)[0]), iteration=0)
        copy.flush()
        assert not list((tmp_path / "copy" / "live").iterdir())
    with Store.open(tmp_path / "run", read_only=True) as reader:
        with pytest.raises(InvalidInputError, match="open for reading only"):
            reader.rollout_log(0)
        assert reader.verify() == []


def test_threads_append_whole_records_while_the_store_commits(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        log = store.rollout_log(7)

        def append(thread: int) -> None:
            for number in range(200):
                log.append(b"%d" % thread, record(thread, number)[1])

        threads = [threading.Thread(target=append, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for iteration in range(3):
            batch = store.rebase(grow(iteration, iteration=iteration)[0])
            store.append(batch, iteration=iteration)
            store.close_iteration(batch, {})
        for thread in threads:
            thread.join()
        records = log.records()
        for thread in range(4):
            payloads = [payload for name, payload in records if name == b"%d" % thread]
            assert payloads == [record(thread, number)[1] for number in range(200)]
        log.sync()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        log = store.rollout_log(0)
        log.append(b"parent", b"")
        child = os.fork()
        if not child:
            refused = 0
            for call in (
                log.sync,
                log.records,
                lambda: log.append(b"child", b""),
                lambda: store.rollout_log(0),
            ):
                try:
                    call()
                except UnsupportedError as error:
                    refused += "was forked from it" in str(error)
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        assert log.records() == [(b"parent", b"")]


def test_links_are_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    with Store.open(tmp_path / "run") as store:
        (tmp_path / "run" / "live").mkdir()
        (tmp_path / "run" / "live" / "0.records").symlink_to(outside)
        with pytest.raises(InvalidInputError, match=r"0\.records is a link to another folder"):
            store.rollout_log(0)
    assert outside.read_text() == "theirs"


@pytest.mark.parametrize(("name", "payload"), [("text", b""), (b"name", None), (b"name", 3)])
def test_a_record_is_bytes(tmp_path: Path, name: object, payload: object) -> None:
    with Store.open(tmp_path) as store:
        log = store.rollout_log(0)
        with pytest.raises(TypeError):
            log.append(name, payload)  # type: ignore[arg-type]
        assert log.records() == []
