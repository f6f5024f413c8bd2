"""What holds of every file in recipes/: it is found, it is a value, and it runs from scores to gradients."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from rollouts import bare, filled

from agentrl_core import recipes
from agentrl_core.component.component import BatchComponent, Component
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe

NAMES = recipes.names()


def test_the_folder_is_the_list() -> None:
    files = Path(str(recipes.__file__)).parent.glob("*.py")
    assert sorted(path.stem for path in files if path.stem != "__init__") == NAMES
    assert {"arpo", "gigpo", "grpo", "rloo"} <= set(NAMES)
    assert dir(recipes) == [*(name.upper() for name in NAMES), "get", "names"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_holds_its_system(name: str) -> None:
    module = importlib.import_module(f"agentrl_core.recipes.{name}")
    recipe = recipes.get(name)
    assert recipe is getattr(recipes, name.upper())
    assert recipe.name == name
    assert re.search(r"\d{4}\.\d{4,5}|http|[A-Z]", recipe.source), "where it is published"
    assert module.__doc__
    assert recipe.source in module.__doc__, "the docstring names the source"
    recipe.check()
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    own = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    for kind in own:
        assert issubclass(kind, Component)
        assert kind.__doc__
        assert ">>> " in kind.__doc__, f"{kind.__name__} has no example"


@pytest.mark.parametrize("name", NAMES)
def test_its_credit_runs(name: str) -> None:
    recipe = recipes.get(name).at(0)
    batch = bare().with_columns("draw", reward=bare().column("score", "draw"))
    for phase in ("reward", "advantage", "weight"):
        for link in recipe.chain(phase):
            assert isinstance(link, BatchComponent)
            assert all(
                column.name not in ("advantage", "return") or batch.has(*reversed([*column])) for column in link.needs
            ), "it is needed before it is made"
            batch = recipe._run(phase, [(0, link)], filled(link, batch))
    assert np.isfinite(batch.column("score", "token")).any()
    advantages = batch.column("advantage", "token")
    assert np.isfinite(advantages).all()


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match="there is no recipe 'nope'; use one of: arpo"):
        recipes.get("nope")
    with pytest.raises(AttributeError, match="has no attribute 'NOPE'"):
        recipes.NOPE  # noqa: B018


def test_no_file_lists_the_others() -> None:
    for name in NAMES:
        tree = ast.parse(Path(str(recipes.__file__)).with_name(f"{name}.py").read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert imports
        assert all(node.module != "agentrl_core.recipes" for node in imports)
