"""Stores prepared by an attacker: nothing outside of them changes, and nothing hangs or fills the memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from stores import assert_same_as_trained, trained

from agentrl_core import Store
from agentrl_core.exceptions import AgentRLError, CorruptError, InvalidInputError, StoreError

FOLDERS = ("nodes", "manifest", "blobs", "journal", "live")


@pytest.mark.parametrize("kind", ["file", "dangling link"])
@pytest.mark.parametrize("name", ["9.json", "+0000099.json", "00000099.txt"])
def test_names_like_those_of_manifests_are_not_manifests(tmp_path: Path, name: str, kind: str) -> None:
    with Store.open(tmp_path) as store:
        batch = trained(store, 0)
    path = tmp_path / "manifest" / name
    path.write_text("{}") if kind == "file" else path.symlink_to(tmp_path / "nothing")
    for read_only in (True, False):
        with Store.open(tmp_path, read_only=read_only) as store:
            assert_same_as_trained(store.batch(0), batch)
    assert path.is_symlink() == (kind != "file")


def test_a_manifest_that_is_a_broken_symlink_is_an_error(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        trained(store, 0)
    (tmp_path / "manifest" / "00000099.json").symlink_to(tmp_path / "nothing")
    for read_only in (True, False):
        with pytest.raises(StoreError, match=r"00000099\.json"):
            Store.open(tmp_path, read_only=read_only)


@pytest.mark.parametrize("folder", [*FOLDERS, "blobs/ab"])
def test_a_folder_that_is_a_link_is_not_written(tmp_path: Path, folder: str) -> None:
    with Store.open(tmp_path / "run") as store:
        trained(store, 0)
    outside = tmp_path / "outside"
    place = tmp_path / "run" / folder
    if place.exists():
        place.rename(outside)
    else:
        outside.mkdir()
        place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside)
    theirs = {"000000000000.00000009.tmp", "00000009.tmp", f"{'ab' * 32}", f"{'ab' * 32}.tmp"}
    for name in theirs:
        (outside / name).write_text("theirs")
    with pytest.raises(InvalidInputError, match=f"{folder} is a link to another folder"):
        Store.open(tmp_path / "run")
    assert theirs <= {path.name for path in outside.iterdir()}


def test_links_at_names_to_come_are_not_written_through(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "run")
    trained(store, 0)
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    count = len(store.nodes)
    for place in (f"nodes/{count:012}.00000002.tmp", "manifest/00000002.tmp"):
        (tmp_path / "run" / place).symlink_to(outside)
    with pytest.raises(StoreError, match="tmp exists already"):
        trained(store, 1)
    store.close()
    assert outside.read_text() == "theirs"
    with Store.open(tmp_path / "run") as store:
        assert (store.iteration, store.verify()) == (1, [])
        trained(store, 1)
    assert outside.read_text() == "theirs"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["manifest/00000001.json", "nodes/000000000000-00000001.arrow", "lock"])
def test_a_pipe_in_place_of_a_file_is_an_error(tmp_path: Path, name: str) -> None:
    with Store.open(tmp_path) as store:
        trained(store, 0)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(AgentRLError, match=Path(name).name), Store.open(tmp_path, read_only=name != "lock") as store:
        store.batch(0)


HUGE = 1 << 40
OPEN = "import sys, agentrl_core as arl; arl.Store.open(sys.argv[1], read_only=True).batch(0)"


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


def test_files_that_claim_any_length_are_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "whole") as store:
        trained(store, 0)
    manifest = tmp_path / "whole" / "manifest" / "00000001.json"
    os.truncate(manifest, HUGE)
    completed = subprocess.run(
        [sys.executable, "-c", OPEN, str(tmp_path / "whole")],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )
    assert completed.returncode == 1, completed.stderr
    assert f"it has {HUGE} bytes" in completed.stderr


def test_a_store_with_a_symlinked_folder_opens_only_for_reading(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run") as store:
        batch = trained(store, 0)
    (tmp_path / "run" / "nodes").rename(tmp_path / "nodes")
    (tmp_path / "run" / "nodes").symlink_to(tmp_path / "nodes")
    with Store.open(tmp_path / "run", read_only=True) as store:
        assert_same_as_trained(store.batch(0), batch)
    with pytest.raises((InvalidInputError, CorruptError)):
        Store.open(tmp_path / "run")
