"""Files and folders appear completely or not at all, and never through a planted link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agentrl_core import Forest, Store, recipes
from agentrl_core._util.files import UNFINISHED, new_file, new_folder, rename_whole
from agentrl_core.cli import main
from agentrl_core.view import Page


def stable_name(name: str) -> str:
    """Return the name of a file; temporary files have a random one."""
    return UNFINISHED if name.endswith(UNFINISHED) else name


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Return what was synced, in order: its name, and the content of its folder (or of itself) at that moment."""
    listings: list[tuple[str, list[str]]] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        folder = path if path.is_dir() else path.parent
        listings.append((stable_name(path.name), sorted(stable_name(file.name) for file in folder.iterdir())))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return listings


def test_a_file_is_synced_before_it_gets_its_name(tmp_path: Path, synced: list[tuple[str, list[str]]]) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with new_file(tmp_path / "a") as file:
        file.write(b"new")
        assert (tmp_path / "a").read_bytes() == b"old"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert synced == [(UNFINISHED, [UNFINISHED, "a"]), (tmp_path.name, ["a"])]


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def written() -> None:
        with new_file(tmp_path / "a") as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        written()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_gets_its_name_when_its_files_are_on_the_disk(
    tmp_path: Path, synced: list[tuple[str, list[str]]]
) -> None:
    half = new_folder(tmp_path / "start")
    for name in ("config", "weights"):
        (half / name).write_text(name)
    rename_whole(half, tmp_path / "start")
    assert sorted(name for name, _ in synced[:2]) == ["config", "weights"]
    assert synced[2:] == [(UNFINISHED, ["config", "weights"]), (tmp_path.name, ["start"])]


def test_an_interrupt_as_the_file_appears_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def interrupted(*arguments: object) -> int:
        os.close(opened(*arguments))  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), new_file(tmp_path / "a"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_new_file_has_the_rights_that_others_have_and_any_name(tmp_path: Path) -> None:
    name = "n" * 255  # of the maximal length of names
    with new_file(tmp_path / name) as file:
        file.write(b"new")
    (tmp_path / "other").write_bytes(b"other")
    rights = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(rights) == 1


def test_names_cannot_be_guessed_and_no_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a link at a guessed name has no effect."""
    names = {new_folder(tmp_path / "a").name for _ in range(8)}
    assert len(names) == 8
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / f".guessed{UNFINISHED}").symlink_to(victim)
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    with pytest.raises(FileExistsError), new_file(tmp_path / "page"):
        pytest.fail("it was opened")
    with pytest.raises(FileExistsError):
        new_folder(tmp_path / "page")
    assert victim.read_bytes() == b"precious"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    forest = Forest()
    forest.add_group(0, "a task")
    path = forest.start(0, 0)
    forest.append(path, [1, 2], kind="prompt")
    forest.append(path, [3], kind="action", logprobs=[-0.5])
    forest.step(path)
    forest.finish(path, reward=1.0)
    with Store.open(tmp_path / "run") as store:
        batch = recipes.GRPO.credit(store.rebase(forest.freeze()))
        store.append(batch, iteration=0)
        store.close_iteration(batch, {})
    return tmp_path / "run"


def test_commands_that_write_follow_no_planted_link(tmp_path: Path, run: Path) -> None:
    """Links at earlier temporary names and at the files themselves lead to a file of another user."""
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_bytes(b"precious")
    out.mkdir()
    planted = [".page.html.half", "page.html", ".saved.html.half", "saved.html", "page.html.tmp"]
    planted += [f".rows.{kind}.{os.getpid()}.tmp" for kind in ("jsonl", "parquet")]
    for name in planted:
        (out / name).symlink_to(victim)
    assert main(["view", str(run), "-o", str(out / "page.html")]) == 0
    with Store.open(run, read_only=True) as store:
        Page.of(store).save(out / "saved.html")
    for kind in ("jsonl", "parquet"):
        assert main(["export", str(run), "--to", str(out / f"rows.{kind}")]) == 0
        assert (out / f"rows.{kind}").stat().st_size > 0
    assert victim.read_bytes() == b"precious"
    assert not (out / "page.html").is_symlink()
    assert (out / "page.html").stat().st_size > 10_000
    outputs = {"page.html", "saved.html", "rows.jsonl", "rows.parquet"}
    assert {path.name for path in out.iterdir()} == outputs | set(planted), "nothing else is left"
