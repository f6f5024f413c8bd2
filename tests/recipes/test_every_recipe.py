"""Every file in recipes/ is found, is a value, and runs from scores to gradients."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from rollouts import bare, filled, small

from agentrl_core import Batch, recipes
from agentrl_core.component.batch_component import BatchComponent
from agentrl_core.component.component import PHASES, Component
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.rstar2 import ResampleOnCorrect
from agentrl_core.reward import OutcomeScore

NAMES = recipes.names()
SMALLER = {"rstar2": {"reward": (OutcomeScore(), ResampleOnCorrect(count=4))}}
"""Recipes whose groups are larger than those of the tests."""


def test_the_folder_is_the_list() -> None:
    files = Path(str(recipes.__file__)).parent.glob("*.py")
    assert sorted(path.stem for path in files if path.stem != "__init__") == NAMES
    assert {"arpo", "gigpo", "grpo", "rloo"} <= set(NAMES)
    assert dir(recipes) == sorted([*(name.upper() for name in NAMES), "find", "get", "names"])


def with_facts(recipe: Recipe) -> Batch:
    """Return a batch with the columns that the recipe reads and does not make: facts and model outputs.

    Scores, advantages and weights are not among the facts: a recipe makes them.
    """
    batch = small([(0, [2, 1]), (0, [1])])
    links = [link for phase in PHASES for link in recipe.chain(phase)]
    produced = {name for link in links for _, name in link.makes} | {"score", "advantage", "return", "weight", "keep"}
    for column in dict.fromkeys([*(column for link in links for column in link.needs), *recipe.model_columns]):
        if column.name not in produced and not column.is_fact:
            rows = batch.num_draws if column.level == "draw" else int(batch.offsets(column.level)[-1])
            batch = batch.with_columns(column.level, **{column.name: np.ones(rows)})
    return batch


@pytest.mark.parametrize("name", NAMES)
def test_a_file_holds_its_system(name: str) -> None:
    module = importlib.import_module(f"agentrl_core.recipes.{name}")
    recipe = recipes.get(name)
    assert recipe is getattr(recipes, name.upper())
    assert recipe.name == name
    assert re.search(r"\d{4}\.\d{4,5}|http|[A-Z]", recipe.source), "where it is published"
    assert module.__doc__
    assert recipe.source in module.__doc__, "the docstring names the source"
    recipe.check(with_facts(recipe))
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and not kind.__name__.startswith("_")
    ]
    for kind in kinds:
        if kind.__name__.startswith("_"):
            continue
        assert issubclass(kind, Component)
        assert kind.__doc__
        assert ">>> " in kind.__doc__, f"{kind.__name__} has no example"


@pytest.mark.parametrize("name", NAMES)
def test_its_credit_runs(name: str) -> None:
    recipe = recipes.get(name).at(0)
    if name in SMALLER:
        recipe = recipe.replace(**SMALLER[name])
    batch = bare().with_columns("draw", reward=bare().column("score", "draw"))
    for phase in ("reward", "advantage", "weight"):
        for link in recipe.chain(phase):
            assert isinstance(link, BatchComponent)
            assert all(
                column.name not in ("advantage", "return") or batch.has(*reversed([*column])) for column in link.needs
            ), "it is needed before it is made"
            batch = recipe._run(phase, [(0, link)], filled(link, batch))
    assert np.isfinite(batch.column("score", "token")).any()
    reads = any(column.name == "advantage" for each in recipe._trainings for column in each.loss.needs)
    assert batch.has("advantage", "token") >= reads, "only a recipe whose losses read none may have none"
    if recipe.chain("advantage"):
        assert np.isfinite(batch.column("advantage", "token")).all()


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match=r"there is no recipe '\?\?'; use one of: .*arpo"):
        recipes.get("??")
    with pytest.raises(RecipeError, match=r"there is no recipe 'gspoo'; did you mean gspo"):
        recipes.get("gspoo")
    with pytest.raises(AttributeError, match=r"has no attribute '__nothing__'; recipes.names\(\) lists the recipes"):
        recipes.__nothing__  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'GRPPO'; did you mean GRPO or"):
        recipes.GRPPO  # noqa: B018


def test_recipes_are_found_by_their_source() -> None:
    assert [recipe.name for recipe in recipes.find("arXiv:2507.19849")] == ["arpo"]
    assert recipes.find("2507.19849") == recipes.find("arxiv:2507.19849v2") == recipes.find("arXiv:2507.19849")
    for name in NAMES:
        assert recipes.get(name) in recipes.find(recipes.get(name).source)
    with pytest.raises(RecipeError, match=r"no recipe has the source '2507'; give one .*arXiv:2507.19849"):
        recipes.find("2507")


def test_no_file_lists_the_others() -> None:
    for name in NAMES:
        tree = ast.parse(Path(str(recipes.__file__)).with_name(f"{name}.py").read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert imports
        assert all(node.module != "agentrl_core.recipes" for node in imports)
