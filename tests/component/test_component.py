"""Components as values: checked options, tables and back, errors that name what is wrong."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass

import pytest

from agentrl_core import advantage, loss, reward, rollout, select
from agentrl_core.component.component import Component, find_component
from agentrl_core.exceptions import RecipeError

COMPONENTS = [
    (select, select.Uniform()),
    (select, select.AcceptAll()),
    (select, select.InformativeGroups(max_rounds=2)),
    (rollout, rollout.Independent()),
    (rollout, rollout.EntropyBranching(budget=6, initial=2, beam=3, reduce="mean", measure="before_tool")),
    (reward, reward.Outcome()),
    (advantage, advantage.GroupRelative(scale="none", ddof=0, eps=1e-9, singleton="raw")),
    (advantage, advantage.GroupInGroup(gamma=1, episode=advantage.Normalisation(ddof=0))),
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


def test_whole_numbers_become_floats_where_floats_are_asked() -> None:
    gamma = advantage.GroupInGroup(gamma=1).gamma
    assert isinstance(gamma, float)
    assert advantage.GroupInGroup(gamma=1) == advantage.GroupInGroup(gamma=1.0)


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
        ({"component": "Policey"}, "loss: there is no component 'Policey'; use one of: BalancedClip, Clip, "),
        ({"component": "annotations"}, "there is no component"),
        ({"component": "Loss"}, "there is no component 'Loss'"),
        ({"entropy": 0.1}, r"component = \"ClassName\"; it has component=None"),
        (
            {"component": "Policy", "entropi": 0.1},
            r"loss\.Policy: option 'entropi' is unknown; its options are: clip, kl",
        ),
        ({"component": "Policy", "entropy": "much"}, "entropy='much' is not possible; give a finite number"),
        ({"component": "Policy", "entropy": True}, "entropy=True"),
        ({"component": "Policy", "kl": {"component": "KL"}}, r"loss\.KL: option 'coefficient' is missing; add it"),
        ({"component": "Policy", "clip": {"component": "KL", "coefficient": 1.0}}, "give a loss.BoundProvider or None"),
        ({"component": "Policy", "entropy": "none"}, "entropy='none'"),
    ],
)
def test_bad_tables(table: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        find_component("agentrl_core.loss", table)


def test_a_phase_without_components() -> None:
    with pytest.raises(RecipeError, match="replay: this phase has no components"):
        find_component("agentrl_core.replay", {"component": "Any"})


@dataclass(frozen=True)
class Mine(Component):
    """A user's component."""

    flag: bool = False
    text: str = ""


def test_a_component_of_ones_own() -> None:
    assert Mine.title() == "Mine"
    assert Mine(flag=True).to_dict() == {"component": f"{Mine.__module__}:Mine", "flag": True, "text": ""}
    assert Mine.from_dict({"component": "Mine", "text": "x"}) == Mine(text="x")
    with pytest.raises(RecipeError, match="Mine: option flag=1 is not possible; give True or False"):
        Mine(flag=1)
