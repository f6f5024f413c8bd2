"""The files that `agentrl train` writes beside the store: whole or absent, even after a power failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from agentrl_core import recipes
from agentrl_core._util.files import UNFINISHED, new_folder, remove_unfinished
from agentrl_core.cli import main
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.train import run_files
from agentrl_core.train.options import TrainOptions


def stable_name(name: str) -> str:
    """Return the name of a file; files that are being written have a random one."""
    return UNFINISHED if name.endswith(UNFINISHED) else name


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Record syncs in order: the name, and the content of its folder (or of itself) at that moment."""
    snapshots: list[tuple[str, list[str]]] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        folder = path if path.is_dir() else path.parent
        snapshots.append((stable_name(path.name), sorted(stable_name(file.name) for file in folder.iterdir())))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return snapshots


def test_a_checkpoint_is_durable_before_the_store_names_it(tmp_path: Path, synced: list[tuple[str, list[str]]]) -> None:
    policy = torch.nn.Linear(2, 2)
    state = {"models": {"policy": policy.state_dict()}}
    names = [run_files.save_checkpoint(tmp_path, iteration, state) for iteration in (1, 2)]
    assert names == ["checkpoints/00000001.pt", "checkpoints/00000002.pt"]
    folder = tmp_path / "checkpoints"
    assert synced[-2:] == [
        (UNFINISHED, [UNFINISHED, "00000001.pt"]),
        ("checkpoints", ["00000001.pt", "00000002.pt"]),
    ], "the one before stays until the store names the new one"
    (folder / f".of-a-kill{UNFINISHED}").write_bytes(b"half")
    run_files.drop_checkpoints(tmp_path, names[1])
    assert [file.name for file in folder.iterdir()] == ["00000002.pt"]
    saved = torch.load(folder / "00000002.pt", weights_only=True)
    assert torch.equal(saved["models"]["policy"]["weight"], policy.weight)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_recipe_file_is_reported(tmp_path: Path, share: float, capsys: pytest.CaptureFixture[str]) -> None:
    text = recipes.GRPO.to_toml() + run_files.options_toml(TrainOptions())
    (tmp_path / "recipe.toml").write_text(text[: int(len(text) * share)])
    with pytest.raises(
        InvalidInputError, match=r"recipe\.toml is incomplete or cannot be read \(.*; remove the file to start again"
    ):
        run_files.begun(tmp_path)
    for more in ([], ["--resume"]):
        assert main(["train", "--run", str(tmp_path), *more]) == 1
        assert "recipe.toml is incomplete" in capsys.readouterr().err


def test_a_whole_recipe_file_is_read(tmp_path: Path) -> None:
    assert run_files.begun(tmp_path) is None
    options = TrainOptions(seed=3)
    (tmp_path / "recipe.toml").write_text(recipes.ARPO.to_toml() + run_files.options_toml(options))
    assert run_files.begun(tmp_path) == (recipes.ARPO, run_files.kept_options(options))


def test_unfinished_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    half = new_folder(tmp_path / "start")
    (half / "model.safetensors").write_bytes(b"half")
    (tmp_path / f".{'0' * 32}{UNFINISHED}").write_bytes(b"half")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_bytes(b"whole")
    (tmp_path / f".planted{UNFINISHED}").symlink_to(elsewhere)
    (tmp_path / ".own").write_bytes(b"whole")
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".own", "elsewhere"]
    assert (elsewhere / "kept").exists()
