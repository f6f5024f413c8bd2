"""docs/credit.md: every component and option that it names exists, and every row is a recipe."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from rollouts import bare, filled, small

from agentrl_core import Batch, Schedule, advantage, group, loss, recipes, reward, select, weight
from agentrl_core.advantage.compat import COMPAT
from agentrl_core.component.component import BatchComponent, Component
from agentrl_core.recipe import Recipe

TEXT = (Path(__file__).parents[2] / "docs" / "credit.md").read_text()
PACKAGES = {"advantage": advantage, "loss": loss, "reward": reward, "select": select, "weight": weight}
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
    assert len(SYSTEMS) + len(recipes.names()) >= 115
    assert len(ESTIMATORS) > 5
    assert len(PROJECTS) >= 20
    assert len(COMPONENT.findall(TEXT)) > 30
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
    made: set[str] = set()
    for link in (*recipe.chain("reward"), *chains["advantage"], *chains["weight"]):
        assert isinstance(link, BatchComponent)
        for _, name in link.needs:
            assert name not in ("score", "step_score", "advantage", "return") or name in made, (
                f"{name} is needed before it is made"
            )
        made.update(name for _, name in link.makes)
        batch = link.at(0)(filled(link, batch))
    scored = np.isfinite(batch.column("score", "token"))
    assert scored.any()
    assert np.isfinite(batch.column("advantage", "token")).all()


def chain(name: str, phase: str = "advantage") -> list[BatchComponent]:
    """The components of a row in a phase."""
    rows = [row[2] if row in SYSTEMS else row[1] for row in (*SYSTEMS, *ESTIMATORS) if name in row[:2]]
    assert len(rows) == 1
    links = [component(text) for text in COMPONENT.findall(rows[0])]
    return [link for link in links if isinstance(link, BatchComponent) and link.phase == phase]


def run(links: list[BatchComponent], batch: Batch) -> Batch:
    assert links
    for link in links:
        batch = link(batch)
    return batch


def test_gpg_divides_by_the_samples_that_have_a_gradient() -> None:
    batch = small([(0, [1]), (0, [1]), (1, [1]), (1, [1])], draw_score=[1.0, 0.0, 1.0, 1.0])
    made = run(chain("gpg") + chain("gpg", "weight"), batch)
    np.testing.assert_allclose(made.column("weight", "draw"), [2.0] * 4)
    np.testing.assert_allclose(made.column("advantage", "draw"), [0.5, -0.5, 0.0, 0.0])
    # verl counts the rewards that are not 0.
    verl = component(re.findall(r"verl counts [^`]*`([^`]*)`", TEXT)[0])
    assert isinstance(verl, BatchComponent)
    np.testing.assert_allclose(verl(batch).column("weight", "draw"), [4 / 3] * 4)


def test_remax_discounts_and_prices_the_distance() -> None:
    batch = small(
        [(0, [2]), (0, [1])],
        draw_score=[2.0, 1.0],
        draw_greedy=[0, 1],
        token_reference_logprob=[-1.0, -3.0, -1.0],
    )
    for name in ("A49", "remax"):
        made = run(chain(name), batch)
        expected = [0.99**2, 0.99 - 0.05 * 2.0, 0.0]
        np.testing.assert_allclose(made.column("advantage", "token"), expected, rtol=1e-6)


def test_vcpo_weighs_by_the_squares_of_ratio_and_gradient() -> None:
    ratio, gradient = np.array([2.0, 1.0]), np.array([1.0, 3.0])
    batch = small([(0, [1]), (0, [1])], draw_score=[1.0, 0.0], draw_gradient_square=ratio**2 * gradient**2)
    made = run(chain("E35"), batch)
    np.testing.assert_allclose(made.column("advantage", "draw"), [1.0 - 4 / 13, -4 / 13], rtol=1e-6)


def test_drpo_reads_which_draws_succeeded() -> None:
    batch = small([(0, [1]), (0, [1]), (0, [1])], draw_score=[1.0, 0.0, 1.0])
    links = [link for link in recipes.DRPO.chain("advantage") if isinstance(link, BatchComponent)]
    np.testing.assert_array_equal(run(links, batch).column("advantage", "draw"), [1.0, 0.0, 1.0])


def test_losses_that_read_scores_take_advantages_that_are_not_scaled() -> None:
    """GDRO: the target is softmax(r / temperature), which a constant does not change; P3O: r_i - r_j."""
    text = (Path(__file__).parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")
    remark = 'the advantage is the score less a constant: `advantage.GroupRelative(scale="none")`'
    rows = [line for line in text.splitlines() if remark in line]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == ["E41"]
    batch = small([(0, [1]), (0, [1])], draw_score=[0.0, 1.0])

    def target(link: BatchComponent) -> np.ndarray:
        return group.softmax(link(batch).column("advantage", "draw"), [0, 0], temperature=0.5)

    np.testing.assert_allclose(target(advantage.GroupRelative(scale="none")), [0.119203, 0.880797], rtol=1e-5)
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
