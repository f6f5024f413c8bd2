"""docs/components.md: every component, option and comparison that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from rollouts import small

from agentrl_core import advantage, group, loss, recipes, reward, select, weight
from agentrl_core.advantage.compat import COMPAT
from agentrl_core.component.batch_component import BatchComponent
from agentrl_core.component.component import Component

TEXT = (Path(__file__).parents[2] / "docs" / "components.md").read_text(encoding="utf-8")
PACKAGES = {"advantage": advantage, "loss": loss, "reward": reward, "select": select, "weight": weight}
COMPONENT = re.compile(r"`((?:advantage|loss|reward|weight)\.[A-Z]\w*\((?!\.\.\.)[^`]*)`")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines() if line.startswith("| ")]
PROJECTS = [row for row in ROWS if len(row) == 6 and row[1].startswith("`")]


def value(node: ast.expr) -> object:
    """Return a component written as `package.Class(option=value)`, or a plain value."""
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    assert isinstance(node.func, ast.Attribute)
    assert isinstance(node.func.value, ast.Name)
    assert not node.args
    module = PACKAGES[node.func.value.id]
    assert node.func.attr in module.__all__
    options = {option.arg: value(option.value) for option in node.keywords}
    return getattr(module, node.func.attr)(**options)


def component(text: str) -> Component:
    built = value(ast.parse(text, mode="eval").body)
    assert isinstance(built, Component)
    return built


def test_the_page_is_found() -> None:
    assert len(PROJECTS) >= 20
    assert len(COMPONENT.findall(TEXT)) >= 8


@pytest.mark.parametrize("text", sorted(set(COMPONENT.findall(TEXT))))
def test_every_component_and_option_exists(text: str) -> None:
    built = component(text)
    standard = ast.parse(text, mode="eval").body
    assert isinstance(standard, ast.Call)
    for option in standard.keywords:
        assert getattr(built, str(option.arg)) == value(option.value)


def test_gpg_divides_by_the_samples_that_have_a_gradient() -> None:
    batch = small([(0, [1]), (0, [1]), (1, [1]), (1, [1])], draw_score=[1.0, 0.0, 1.0, 1.0])
    result = batch
    for link in (*recipes.GPG.chain("advantage"), *recipes.GPG.chain("weight")):
        assert isinstance(link, BatchComponent)
        result = link(result)
    np.testing.assert_allclose(result.column("weight", "draw"), [2.0] * 4)
    np.testing.assert_allclose(result.column("advantage", "draw"), [0.5, -0.5, 0.0, 0.0])
    # verl counts the rewards that are not 0.
    verl = component(re.findall(r"verl counts [^`]*`([^`]*)`", TEXT)[0])
    assert isinstance(verl, BatchComponent)
    np.testing.assert_allclose(verl(batch).column("weight", "draw"), [4 / 3] * 4)


def test_losses_that_read_scores_take_advantages_that_are_not_scaled() -> None:
    """GDRO: the target is softmax(r / temperature), which a constant does not change and a scale does."""
    batch = small([(0, [1]), (0, [1])], draw_score=[0.0, 1.0])

    def target(link: object) -> np.ndarray:
        assert isinstance(link, BatchComponent)
        return group.softmax(link(batch).column("advantage", "draw"), [0, 0], temperature=0.5)

    np.testing.assert_allclose(target(recipes.GDRO_DIFFUSION.advantage), [0.119203, 0.880797], rtol=1e-5)
    np.testing.assert_allclose(target(recipes.EXO.advantage), [0.119203, 0.880797], rtol=1e-5)
    np.testing.assert_allclose(target(advantage.GroupRelative(eps=0.0)), [0.055807, 0.944193], rtol=1e-4)


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
