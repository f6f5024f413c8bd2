"""`agentrl train`: train a language model on tasks with a calculator, in TextWorld, or in any environment."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.exceptions import RecipeError

if TYPE_CHECKING:
    from agentrl_core.recipe import Recipe


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the argument `--recipe`, and one for each option of `TrainOptions`."""
    from agentrl_core import recipes
    from agentrl_core.train.options import TrainOptions

    command.description = (
        "Train a language model on tasks by a recipe: with a calculator, in TextWorld, or in an environment of yours."
    )
    command.add_argument(
        "--recipe",
        help=f"one of the {len(recipes.names())} that `agentrl recipes` lists, or a TOML file, which may set these "
        "options in a table [train] (default: grpo; with --resume: that of the run)",
    )
    for option in dataclasses.fields(TrainOptions):
        flag = "--" + option.name.replace("_", "-")
        text = option.metadata["help"]
        # SUPPRESS: options that are not given must not override the recipe file.
        if isinstance(option.default, bool):
            command.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=text)
        elif isinstance(option.default, tuple):
            help_text = f"{text} (default: {' '.join(option.default) or 'none'})"
            command.add_argument(flag, nargs="+", default=argparse.SUPPRESS, help=help_text, metavar="NAME")
        else:
            help_text = f"{text} (default: {option.default!r})"
            kind = type(option.default)
            command.add_argument(
                flag, type=kind, default=argparse.SUPPRESS, help=help_text, metavar=kind.__name__.upper()
            )


def run(**given: Any) -> int:
    """Train a model with a recipe, and print the results."""
    from rich.console import Console

    from agentrl_core._util.near_names import near_names
    from agentrl_core.cli._run_display import RunDisplay, learning_curve, show_summary
    from agentrl_core.train.loop import train
    from agentrl_core.train.options import TrainOptions
    from agentrl_core.train.run_files import begun

    recipe_name = given.pop("recipe")
    before = begun(Path(given.get("run", TrainOptions.run))) if given.get("resume") else None
    recipe, table = recipe_of(recipe_name or "grpo") if recipe_name or before is None else before
    if before is not None:
        table = {**before[1], **table}
    values = {**table, **given}
    known = {option.name for option in dataclasses.fields(TrainOptions)}
    for name in values:
        if name not in known:
            hint = near_names(name, known, f"use one of: {', '.join(sorted(known))}")
            raise RecipeError(f"table [train]: option {name!r} does not exist; {hint}")
    for option in dataclasses.fields(TrainOptions):
        if isinstance(option.default, tuple) and isinstance(values.get(option.name), list):
            values[option.name] = tuple(values[option.name])
    options = TrainOptions(**values)
    console = Console()
    try:
        with RunDisplay(console) as progress:
            summary = train(options, recipe, progress)
    except KeyboardInterrupt:
        print("interrupted; continue with --resume", file=sys.stderr)
        return 130
    if not summary:  # another rank of torchrun keeps the run
        return 0
    folder = Path(options.run)
    learning_curve(folder)
    show_summary(console, folder, summary)
    return 0


def recipe_of(name: str) -> tuple[Recipe, dict[str, Any]]:
    """Return a recipe by name or from a file, and the file's table of options; imports the file's components."""
    from agentrl_core import recipes
    from agentrl_core.recipe import Recipe

    if not name.endswith(".toml"):
        return recipes.get(name), {}
    table, options = tables_of(name)
    return Recipe.from_dict(table), options


def tables_of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables of a recipe's file: the recipe and the options."""
    try:
        table = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"recipe file {name!r} cannot be read: {error.strerror}; check the path") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecipeError(f"{name} is not valid TOML: {error}; correct it there") from error
    options = table.pop("train", {})
    return table, options
