"""Every exported component is a value and converts to a table and TOML; it refuses unknown options."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import typing

import numpy as np
import pytest
from rollouts import bare, filled, has, ragged
from torch import Tensor

from agentrl_core import Batch, Schedule, loss, recipes, rollout
from agentrl_core.advantage import Normalisation, TreeRelative
from agentrl_core.component.batch_component import BatchComponent
from agentrl_core.component.component import PHASES, Component, find_component
from agentrl_core.component.state import Stateful, pack_state, unpack_state
from agentrl_core.exceptions import NotFoundError, RecipeError
from agentrl_core.loss.base import OverRows, Part
from agentrl_core.recipe import Recipe
from agentrl_core.rollout.program import BudgetedRollout


@loss.function()
def likelihood(logprob: Tensor, _entropy: Tensor, streams: dict[str, Tensor]) -> Tensor:
    """A user's own loss, which `Function` refers to."""
    return -streams["weight_kl"] * logprob


REQUIRED = {  # options without a default
    "CombineReward": {"column": "reward.format"},
    "LengthPenalty": {"free": 10, "full_at": 20},
    "Checklist": {"items": 2},
    "ChecklistRelative": {"items": 2},
    "BalancedSum": {"columns": "reward.a,reward.b"},
    "BoundedDrift": {"coefficient": 0.1},
    "ConstrainedSum": {"columns": "reward.a,reward.b"},
    "BaselineRelative": {"column": "value"},
    "KL": {"coefficient": 0.1},
    "MirrorDivergence": {"coefficient": 0.1},
    "Sum": {"first": loss.Policy(), "second": loss.Imitation("token_mean")},
    "Train": {"loss": loss.Policy()},
    "Function": {"path": likelihood.path},
    "Choice": {"of": (1, 2), "by": Schedule(0, 1, iterations=2)},
    "Above": {"metric": "kl"},
    "FreezeModel": {"model": "critic"},
    "RepeatStage": {"stage": "fixup"},
    "SwapModels": {"one": "policy", "other": "critic"},
    "SyncModel": {"source": "policy", "target": "reference"},
    "DecayedAverage": {"source": "policy", "target": "average"},
    "DelayedModel": {"model": "policy"},
    "Below": {"metric": "kl"},
    "Plateau": {"metric": "success"},
    "PoolColumn": {"by": "prior"},
    "BestMarked": {"column": "item"},
    "MarkedScaled": {"column": "item"},
    "SelfPlay": {"agents": ("one", "two")},
    "RecentVisits": {"size": 3},
    "Curriculum": {"by": "hops", "buckets": "1,2"},
}


BASES = (BudgetedRollout, OverRows, Part)
"""Base classes of user components."""


def exported() -> list[type[Component]]:
    """Return all components of all phases, and those of systems."""
    components = []
    for package in sorted(set(PHASES.values())):
        home = importlib.import_module(f"agentrl_core.{package}")
        modules = [
            home,
            *(importlib.import_module(each.name) for each in pkgutil.walk_packages(home.__path__, f"{home.__name__}.")),
        ]
        kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
        components += [
            kind
            for kind in sorted(kinds, key=lambda kind: kind.__name__)
            if issubclass(kind, Component)
            and kind.__module__.startswith(f"{home.__name__}.")
            and not kind.__name__.startswith("_")
            and not inspect.isabstract(kind)
            and kind not in BASES
        ]
    for name in recipes.names():
        module = importlib.import_module(f"agentrl_core.recipes.{name}")
        kinds = [
            kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__
        ]
        components += [kind for kind in kinds if issubclass(kind, Component) and not kind.__name__.startswith("_")]
    return components


COMPONENTS = exported()


def make(kind: type[Component], /, **options: object) -> Component:
    return kind(**(REQUIRED.get(kind.__name__, {}) | options))


def others(kind: type[Component]) -> typing.Iterator[Component]:
    """Yield the component with another value of each option, if its type lists them and they are compatible."""
    hints = typing.get_type_hints(kind)
    standard = make(kind)
    for option in dataclasses.fields(kind):
        hint, value = hints[option.name], getattr(standard, option.name)
        values: list[object] = []
        if typing.get_origin(hint) is typing.Literal:
            values = [choice for choice in typing.get_args(hint) if choice != value]
        elif hint is bool:
            values = [not value]
        elif hint is int:
            values = [value + 1]
        elif hint is float:
            values = [value * 0.5 + 0.125]
        elif type(None) in typing.get_args(hint):
            values = [1.5] if float in typing.get_args(hint) else []
        for other in values:
            try:
                yield make(kind, **{option.name: other})
            except RecipeError:  # it needs another option as well, or is out of range
                continue


def test_there_are_components() -> None:
    assert len(COMPONENTS) > 30
    assert len({kind.title() for kind in COMPONENTS}) == len(COMPONENTS)


@pytest.mark.parametrize("kind", COMPONENTS, ids=lambda kind: kind.__name__)
def test_table_pickle_and_toml_give_the_same_back(kind: type[Component]) -> None:
    package = f"agentrl_core.{PHASES[kind.phase]}" if kind.phase else ".".join(kind.__module__.split(".")[:2])
    changed = list(others(kind))
    for component in (make(kind), *changed):
        again = find_component(package, component.to_dict())
        assert again == component
        assert hash(again) == hash(component)
        assert pickle.loads(pickle.dumps(component)) == component
        if component.phase:
            recipe = Recipe(name="mine", **{component.phase: component})
            assert Recipe.from_toml(recipe.to_toml()) == recipe
        if isinstance(component, BatchComponent):
            assert component.makes
            assert all(level in ("draw", "step", "token") and name for level, name in component.needs + component.makes)
    assert len(changed) >= sum(1 for option in dataclasses.fields(kind) if option.type == "bool")


@pytest.mark.parametrize("kind", COMPONENTS, ids=lambda kind: kind.__name__)
def test_docstring_names_every_option(kind: type[Component]) -> None:
    text = "".join(base.__doc__ or "" for base in kind.__mro__ if issubclass(base, Component))
    assert ">>> " in (kind.__doc__ or "")
    for option in dataclasses.fields(kind):
        assert f"        {option.name}: " in text, f"{kind.__name__} does not say what {option.name} is"


@pytest.mark.parametrize("kind", COMPONENTS, ids=lambda kind: kind.__name__)
def test_unknown_and_invalid_options_are_reported_by_name(kind: type[Component]) -> None:
    package = f"agentrl_core.{PHASES[kind.phase]}" if kind.phase else ".".join(kind.__module__.split(".")[:2])
    with pytest.raises(RecipeError, match=rf"{kind.__name__}: option 'no_such_option' is unknown"):
        find_component(package, make(kind).to_dict() | {"no_such_option": 1})
    for option in dataclasses.fields(kind):
        with pytest.raises(RecipeError, match=rf"{kind.__name__}: option {option.name}="):
            make(kind, **{option.name: object()})


BATCH_COMPONENTS = [kind for kind in COMPONENTS if issubclass(kind, BatchComponent)]


@pytest.mark.parametrize("kind", BATCH_COMPONENTS, ids=lambda kind: kind.__name__)
def test_needs_and_makes_are_true(kind: type[BatchComponent]) -> None:
    standard = make(kind)
    for component in (standard, *others(kind)):
        try:
            result = component(filled(component))
        except NotFoundError as error:
            pytest.fail(f"{component} reads what it does not say it needs: {error}")
        for level, name in component.makes:
            assert result.has(name, level)
            assert len(result.column(name, level)) == len(result.column("score", level))
            if name in ("advantage", "weight", "keep"):
                assert np.isfinite(result.column(name, level)).all()


def scheduled(kind: type[BatchComponent]) -> typing.Iterator[tuple[BatchComponent, BatchComponent]]:
    """Yield the component with a schedule for each numeric option, and its value in the third iteration."""
    hints = typing.get_type_hints(kind)
    for option in dataclasses.fields(kind):
        value = getattr(make(kind), option.name)
        if hints[option.name] is float or float in typing.get_args(hints[option.name]):
            start = 1.5 if value is None else value
            for end in (start * 0.5, start * 0.5 + 0.125, start + 0.5):
                with contextlib.suppress(RecipeError):
                    schedule = Schedule(start, end, iterations=4)
                    yield (
                        make(kind, **{option.name: schedule}),
                        make(kind, **{option.name: start + (end - start) * 0.5}),
                    )
                    break


@pytest.mark.parametrize("kind", BATCH_COMPONENTS, ids=lambda kind: kind.__name__)
def test_every_number_may_be_a_schedule(kind: type[BatchComponent]) -> None:
    for component, third in scheduled(kind):
        assert component != make(kind)
        again = find_component(f"agentrl_core.{PHASES[kind.phase]}", component.to_dict())
        assert again == component
        assert hash(again) == hash(component)
        assert pickle.loads(pickle.dumps(component)) == component
        recipe = Recipe(name="mine", **{component.phase: component})
        assert Recipe.from_toml(recipe.to_toml()) == recipe
        batch = ragged(0, members=5, iteration=2)
        batch = filled(third, batch.with_columns("draw", score=batch.column("score", "draw") / 2))
        assert component.at(2) == third
        result, expected = run(component, batch), third(batch)
        for level, name in third.makes:
            np.testing.assert_array_equal(result.column(name, level), expected.column(name, level))


def run(component: BatchComponent, batch: Batch) -> Batch:
    """Return the phase's result on the batch, in a recipe with only this component."""
    chains = dict.fromkeys(("advantage", "weight")) | {component.phase: component}
    now = Recipe(name="mine", **chains)._of(batch)
    return now._run(component.phase, list(enumerate(now.chain(component.phase))), batch)


def test_numbers_inside_other_components_follow_a_schedule() -> None:
    falling = Schedule(0.2, 0.1, iterations=4)
    recipe = Recipe(
        name="mine",
        rollout=rollout.EntropyBranching(budget=Schedule(16, 8, iterations=4)),
        advantage=TreeRelative(normalisation=Normalisation(eps=Schedule(0.2, 0.1, iterations=4))),
        loss=loss.Policy(kl=loss.KL(falling)),
    )
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    half = recipe.at(2)
    assert half.loss == loss.Policy(kl=loss.KL(falling.at(2)))
    assert half.rollout == rollout.EntropyBranching(budget=12)
    assert half.chain("advantage")[0].normalisation.eps == pytest.approx(0.15)
    assert recipe.models == half.models == ("reference",)
    assert half.at(2) is half
    with pytest.raises(RecipeError, match=r"KL: option coefficient=-1\.0 is not possible"):
        loss.Policy(kl=loss.KL(Schedule(0.1, -1.0, iterations=4)))


@pytest.mark.parametrize("kind", BATCH_COMPONENTS, ids=lambda kind: kind.__name__)
def test_a_missing_column_is_named(kind: type[BatchComponent]) -> None:
    component = make(kind)
    for level, name in component.needs:
        if not has(bare(), level, name):
            with pytest.raises(NotFoundError, match=rf"no column \"{name}\" at level"):
                component(filled(component, without=name))


@pytest.mark.parametrize(
    "kind", [kind for kind in COMPONENTS if issubclass(kind, Stateful)], ids=lambda kind: kind.__name__
)
def test_a_first_state_is_plain(kind: type[Stateful]) -> None:
    import json

    component = make(kind)
    assert isinstance(component, Stateful)
    state = component.initial_state()
    assert json.loads(json.dumps(pack_state(state))) == pack_state(unpack_state(pack_state(state)))
