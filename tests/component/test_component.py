"""Components as values: checked options, conversion to tables and back, errors that name the wrong option."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass

import pytest

from agentrl_core import advantage, loss, reward, rollout, select
from agentrl_core.component import Where, draw
from agentrl_core.component.component import Component, find_component
from agentrl_core.exceptions import RecipeError

COMPONENTS = [
    (select, select.Uniform()),
    (select, select.AcceptAll()),
    (select, select.DynamicSampling(max_rounds=2)),
    (rollout, rollout.Independent()),
    (rollout, rollout.EntropyBranching(budget=6, initial=2, beam=3, reduce="mean", measure="before_tool")),
    (reward, reward.OutcomeScore()),
    (advantage, advantage.GroupRelative(scale="none", ddof=0, eps=1e-9, singleton="raw")),
    (advantage, advantage.TreeRelative(trace=1, normalisation=advantage.Normalisation(ddof=0))),
    (loss, loss.Policy()),
    (loss, loss.Policy(clip=None)),
    (loss, loss.Policy(clip=loss.Clip(dual=3), kl=loss.KL(0.1), aggregate="constant", constant=7)),
]


@pytest.mark.parametrize(("package", "component"), COMPONENTS, ids=[str(component) for _, component in COMPONENTS])
def test_table_and_pickle_give_the_same_back(package: object, component: Component) -> None:
    again = find_component(package.__name__, component.to_dict())
    assert again == component
    assert hash(again) == hash(component)
    assert pickle.loads(pickle.dumps(component)) == component


def test_components_of_every_phase_need_no_module() -> None:
    table = advantage.GroupRelative(where=Where(source="fresh")).to_dict()
    assert table["where"]["component"] == "Where"
    assert find_component("agentrl_core.advantage", table).where == Where(source="fresh")
    with pytest.raises(RecipeError, match="component 'Component' does not exist"):
        find_component("agentrl_core.advantage", {"component": "Component"})


def test_integers_become_floats_in_float_options() -> None:
    gamma = advantage.Gae(gamma=1).gamma
    assert isinstance(gamma, float)
    assert advantage.Gae(gamma=1) == advantage.Gae(gamma=1.0)


def test_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        advantage.GroupRelative().eps = 1.0


def test_none_that_is_not_the_default_is_written() -> None:
    assert loss.Policy(clip=None).to_dict()["clip"] == "none"
    assert "kl" not in loss.Policy().to_dict()
    assert advantage.GroupRelative(scale="none").to_dict()["scale"] == "none"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"component": "Policey"}, "loss: component 'Policey' does not exist; did you mean Policy"),
        ({"component": "annotations"}, "component 'annotations' does not exist"),
        ({"component": "Loss"}, "component 'Loss' does not exist; .*use one of: Clip, Clipped, "),
        ({"entropy": 0.1}, r"the table has no component; add a line component = \"ClassName\""),
        (
            {"component": "Policy", "entropi": 0.1},
            r"loss\.Policy: option 'entropi' is unknown; did you mean entropy",
        ),
        (
            {"component": "Policy", "far": 0.1},
            r"loss\.Policy: option 'far' is unknown; use one of: aggregate, constant, clip, kl",
        ),
        ({"component": "Policy", "entropy": "much"}, "entropy='much' is not possible; give a finite number"),
        ({"component": "Policy", "entropy": True}, "entropy=True"),
        ({"component": "Policy", "kl": {"component": "KL"}}, r"loss\.KL: option 'coefficient' is missing; add it"),
        ({"component": "Policy", "clip": {"component": "KL", "coefficient": 1.0}}, "give a loss.ClipRange or None"),
        ({"component": "Policy", "entropy": "none"}, "entropy='none'"),
    ],
)
def test_bad_tables(table: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        find_component("agentrl_core.loss", table)


def test_a_phase_without_components() -> None:
    with pytest.raises(RecipeError, match="no_phase: this phase has no components"):
        find_component("agentrl_core.no_phase", {"component": "Any"})


@dataclass(frozen=True)
class Mine(Component):
    """A user's component."""

    flag: bool = False
    text: str = ""


def test_a_custom_component() -> None:
    assert Mine.title() == "Mine"
    assert Mine(flag=True).to_dict() == {"component": f"{Mine.__module__}:Mine", "flag": True, "text": ""}
    assert Mine.from_dict({"component": "Mine", "text": "x"}) == Mine(text="x")
    with pytest.raises(RecipeError, match="Mine: option flag=1 is not possible; give True or False"):
        Mine(flag=1)


def test_a_class_without_the_dataclass_decorator_is_reported() -> None:
    class Bare(Mine):
        more: float = 2.0

    with pytest.raises(
        RecipeError,
        match=r"Bare: more is not an option .* with @dataclass\(frozen=True\)",
    ):
        Bare()


@pytest.mark.parametrize("columns", [("score",), draw("score"), (draw("score"), 3)])
@pytest.mark.parametrize("name", ["needs", "makes"])
def test_needs_and_makes_that_are_not_columns_are_reported(name: str, columns: object) -> None:
    kind = dataclass(frozen=True)(type("Reader", (Component,), {name: columns}))
    with pytest.raises(RecipeError, match=rf"Reader: {name} has .*, which is not a column; give a tuple of draw"):
        kind()


def test_a_number_too_large_for_a_float_is_reported() -> None:
    with pytest.raises(RecipeError, match=r"option gamma=1000.* is not possible; give a finite number"):
        advantage.Gae(gamma=10**400)
