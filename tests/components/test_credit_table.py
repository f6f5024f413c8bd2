"""docs/credit.md: every component and option that it names exists, and every row is a recipe."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from rollouts import bare, filled

from agentrl_core import Schedule, advantage, group, loss, reward, weight
from agentrl_core.advantage.compat import COMPAT
from agentrl_core.component.component import BatchComponent, Component
from agentrl_core.recipe import Recipe

TEXT = (Path(__file__).parents[2] / "docs" / "credit.md").read_text()
PACKAGES = {"advantage": advantage, "loss": loss, "reward": reward, "weight": weight}
COMPONENT = re.compile(r"`((?:advantage|loss|reward|weight)\.[A-Z][^`]*)`")
FUNCTION = re.compile(r"`((?:advantage|loss|reward|weight)\.[a-z_]+)`")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines() if line.startswith("| ")]
SYSTEMS = [row for row in ROWS if len(row) == 5 and re.fullmatch(r"[A-E]\d+", row[0])]
ESTIMATORS = [row for row in ROWS if len(row) == 3 and "arxiv.org" in row[2]]
PROJECTS = [row for row in ROWS if len(row) == 6 and row[1].startswith("`")]


def value(node: ast.expr) -> object:
    """A component written as `package.Class(option=value)`, or a plain value."""
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    if isinstance(node.func, ast.Name):
        assert node.func.id == "Schedule"
        return Schedule(**{str(option.arg): ast.literal_eval(option.value) for option in node.keywords})
    assert isinstance(node.func, ast.Attribute)
    assert isinstance(node.func.value, ast.Name)
    assert not node.args
    module = PACKAGES[node.func.value.id]
    assert node.func.attr in module.__all__
    options = {option.arg: value(option.value) for option in node.keywords}
    return getattr(module, node.func.attr)(**options)


def component(text: str) -> Component:
    made = value(ast.parse(text, mode="eval").body)
    assert isinstance(made, Component)
    return made


def test_the_table_is_found() -> None:
    assert len(SYSTEMS) == 115
    assert len(ESTIMATORS) == 11
    assert len(PROJECTS) >= 20
    assert len(COMPONENT.findall(TEXT)) > 300
    assert len({row[0] for row in SYSTEMS}) == len(SYSTEMS)


@pytest.mark.parametrize("text", sorted(set(COMPONENT.findall(TEXT))))
def test_every_component_and_option_exists(text: str) -> None:
    made = component(text)
    standard = ast.parse(text, mode="eval").body
    assert isinstance(standard, ast.Call)
    for option in standard.keywords:
        assert getattr(made, str(option.arg)) == value(option.value)


@pytest.mark.parametrize("text", sorted(set(FUNCTION.findall(TEXT))))
def test_every_function_exists(text: str) -> None:
    package, _, name = text.partition(".")
    assert callable(getattr(PACKAGES[package], name))


@pytest.mark.parametrize("row", [*SYSTEMS, *(["", *row] for row in ESTIMATORS)], ids=lambda row: row[0] or row[1])
def test_every_row_is_a_recipe(row: list[str]) -> None:
    links = [component(text) for text in COMPONENT.findall(row[2])]
    assert links
    assert re.search(r"arXiv:\d{4}\.\d{4,5}", row[3])
    chains: dict[str, tuple[Component, ...]] = {
        phase: tuple(link for link in links if link.phase == phase) for phase in ("reward", "advantage", "weight")
    }
    assert [link for chain in chains.values() for link in chain] == links, "phases are out of order"
    assert chains["advantage"]
    recipe = Recipe(name="row", **{phase: chain for phase, chain in chains.items() if chain})
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    batch = bare().with_columns("draw", reward=bare().column("score", "draw"))
    for link in (*recipe.chain("reward"), *chains["advantage"], *chains["weight"]):
        assert isinstance(link, BatchComponent)
        for level, name in link.needs:
            assert name not in ("advantage", "return") or batch.has(name, level), "it is needed before it is made"
        batch = link.at(0)(filled(link, batch))
    scored = np.isfinite(batch.column("score", "token"))
    assert scored.any()
    assert np.isfinite(batch.column("advantage", "token")).all()


@pytest.mark.parametrize("row", PROJECTS, ids=lambda row: row[1])
def test_every_project_has_its_options(row: list[str]) -> None:
    options = advantage.compat(row[1].strip("`"))
    assert ("none" in row[3]) == (options["scale"] == "none")
    assert ("std (n)" in row[3]) == (options.get("ddof") == 0)
    assert ("its score" in row[4]) == (options.get("singleton") == "raw")
    assert ("others" in row[2]) == (options["center"] == "leave_one_out")
    alone = group.normalise(np.array([3.0]), [0], **options)[0]
    assert alone == pytest.approx(3.0 if "its score" in row[4] else 0.0, rel=1e-5)
    eps = re.search(r"\+ (1e-\d)", row[3])
    assert eps is None or options["eps"] == float(eps[1])


def test_every_project_is_in_the_table() -> None:
    assert {row[1].strip("`") for row in PROJECTS} == set(COMPAT)
