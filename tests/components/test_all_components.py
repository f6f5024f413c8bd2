"""What holds of every exported component: it is a value, a table, a line of TOML, and refuses what it does not know."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pickle
import typing

import pytest

from agentrl_core.component import PHASES, BatchComponent, Component, StatefulComponent, find_component
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe

REQUIRED = {  # options without a default
    "Fuse": {"column": "reward.format"},
    "LengthPenalty": {"free": 10, "limit": 20},
    "Checklist": {"items": 2},
    "ChecklistRelative": {"items": 2},
    "LengthWeighted": {"limit": 100},
    "BaselineRelative": {"column": "value"},
    "KL": {"coefficient": 0.1},
}


def exported() -> list[type[Component]]:
    """All components of all phases."""
    found = []
    for package in sorted(set(PHASES.values())):
        try:
            module = importlib.import_module(f"agentrl_core.{package}")
        except ModuleNotFoundError:
            continue
        kinds = [getattr(module, name) for name in module.__all__]
        found += [
            kind
            for kind in kinds
            if isinstance(kind, type) and issubclass(kind, Component) and not inspect.isabstract(kind)
        ]
    return found


COMPONENTS = exported()


def make(kind: type[Component], **options: object) -> Component:
    return kind(**(REQUIRED.get(kind.__name__, {}) | options))


def others(kind: type[Component]) -> typing.Iterator[Component]:
    """The component with another value of each option, where its type says which there are and they go together."""
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
            except RecipeError:  # it needs another option beside it, or is out of range
                continue


def test_there_are_components() -> None:
    assert len(COMPONENTS) > 30
    assert len({kind.__name__ for kind in COMPONENTS}) == len(COMPONENTS)


@pytest.mark.parametrize("kind", COMPONENTS, ids=lambda kind: kind.__name__)
def test_table_pickle_and_toml_give_the_same_back(kind: type[Component]) -> None:
    package = ".".join(kind.__module__.split(".")[:2])
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
def test_what_is_not_possible_is_refused_by_name(kind: type[Component]) -> None:
    package = ".".join(kind.__module__.split(".")[:2])
    with pytest.raises(RecipeError, match=rf"{kind.__name__}: option 'no_such_option' is unknown"):
        find_component(package, make(kind).to_dict() | {"no_such_option": 1})
    for option in dataclasses.fields(kind):
        with pytest.raises(RecipeError, match=rf"{kind.__name__}: option {option.name}="):
            make(kind, **{option.name: object()})


@pytest.mark.parametrize(
    "kind", [kind for kind in COMPONENTS if issubclass(kind, StatefulComponent)], ids=lambda kind: kind.__name__
)
def test_a_first_state_is_plain(kind: type[StatefulComponent]) -> None:
    import json

    state = kind().initial_state()
    assert json.loads(json.dumps(state)) == state
