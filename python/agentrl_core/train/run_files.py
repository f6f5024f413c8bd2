"""Files of a training run: recipe and options, checkpoints, and folders that transformers loads."""

from __future__ import annotations

import copy
import json
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentrl_core._util.files import UNFINISHED, new_file, new_folder, rename_whole, sync_folder
from agentrl_core.data.store import Store
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipe import Recipe
from agentrl_core.train.options import KEPT, TrainOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def begun(run: Path) -> tuple[Recipe, dict[str, Any]] | None:
    """Return the recipe and options that a run started with; None without a run.

    Raises:
        InvalidInputError: its `recipe.toml` is truncated, as after a kill, or cannot be read.
        RecipeError: it is not a recipe of this version.
    """
    path = run / "recipe.toml"
    if not path.is_file():
        return None
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        table, why = {}, str(error)
    else:
        why = "options of table [train] are missing"
    options = table.pop("train", {})
    if options:
        options.setdefault("staleness", 0)  # the only value in earlier versions
        options.setdefault("instructions", "off")  # earlier versions gave no instructions
        options.setdefault("learning_rate", 5e-4)
        for option in fields(TrainOptions):
            if option.name in KEPT:
                options.setdefault(option.name, option.default)
    if not options.keys() >= KEPT:
        raise InvalidInputError(
            f"{path} is incomplete or cannot be read ({why}), perhaps since the run was killed while it started or the "
            "file was edited; remove the file to start again if nothing was trained yet, otherwise restore it from a "
            "copy"
        )
    return Recipe.from_dict(table), options


def begin(options: TrainOptions, recipe: Recipe, run: Path, store: Store) -> None:
    """Write recipe and options to `recipe.toml`; when a run resumes, check that they are the same."""
    path = run / "recipe.toml"
    before = begun(run)
    if before is None:
        if store.version:
            raise InvalidInputError(f"{run} has a store that agentrl train did not create; choose another --run")
        text = recipe.to_toml() + options_toml(options)
        with new_file(path) as file:
            file.write(text.encode())
        return
    if not options.resume:
        raise InvalidInputError(f"{run} already has a run; pass --resume to continue it, or choose another --run")
    old, values = before
    if old != recipe:
        raise InvalidInputError(
            f"{run} started with recipe {old.name!r} as in {path}, not with {recipe.name!r} as given; omit --recipe "
            f"to continue it, or choose another --run"
        )
    for name, value in kept_options(options).items():
        if values.get(name) != value:
            raise InvalidInputError(
                f"{run} started with {name}={values.get(name)!r}, not {value!r}; omit the option to continue, choose "
                f"another --run, or change it in {path}"
            )


def kept_options(options: TrainOptions) -> dict[str, Any]:
    """Return the options that must not change when a run resumes; its length and the machine may."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(options).items()}
    return {name: value for name, value in values.items() if name in KEPT}


def options_toml(options: TrainOptions) -> str:
    """Return the table `[train]` of `recipe.toml`."""
    lines = (f"{name} = {json.dumps(value)}" for name, value in kept_options(options).items())
    return "\n".join(["", "[train]", *lines, ""])


def save_folder(run: Path, name: str, policy: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a folder that transformers and vLLM load, with an adapter merged into its model; replace an earlier one."""
    merged = copy.deepcopy(policy).merge_and_unload() if hasattr(policy, "merge_and_unload") else policy
    half = new_folder(run / name)
    merged.save_pretrained(half)
    tokenizer.save_pretrained(half)
    if (run / name).exists():
        shutil.rmtree(run / name)
    rename_whole(half, run / name)


def load_checkpoint(run: Path, name: str) -> dict[str, Any]:
    """Load the checkpoint with the name that is recorded in the store."""
    return torch.load(run / name, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]


def save_checkpoint(run: Path, iteration: int, state: Mapping[str, Any]) -> str:
    """Write a checkpoint durably, and return its name; older ones stay until the store refers to it."""
    folder = run / "checkpoints"
    if not folder.is_dir():
        folder.mkdir()
        sync_folder(run)
    path = folder / f"{iteration:08d}.pt"
    with new_file(path) as file:
        torch.save(state, file)
    return str(path.relative_to(run))


def drop_checkpoints(run: Path, keep: str) -> None:
    """Remove unfinished checkpoints, and all others except the one that the store refers to."""
    for path in (run / "checkpoints").iterdir():
        if path != run / keep and path.suffix in (".pt", ".tmp", UNFINISHED):
            path.unlink()
