"""Options: their ranges, the columns that they name, and the columns that a component declares as needed and made."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from agentrl_core import Schedule
from agentrl_core.component import Column, Component, column_name, draw, option, step, token
from agentrl_core.component.column import Level
from agentrl_core.exceptions import RecipeError


@dataclass(frozen=True)
class Inner(Component):
    """A component nested in another one."""

    needs: ClassVar[tuple[Column, ...]] = (token("value", model="critic"),)

    share: float = option(0.5, at_least=0, at_most=1)


@dataclass(frozen=True)
class Outer(Component):
    """A component with an option of every kind."""

    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    required: float = option(above=0, below=1)
    count: int = option(3, at_least=1)
    limit: float | None = option(None, above=0)
    name: str = option("x", filled=True)
    column: str = column_name("reward", level="level")
    group_by: str = column_name("group_id", level="draw", optional=True)
    reference: str = column_name("reference_logprob", level="token", model="reference")
    level: Level = "draw"
    kind: Literal["plain", "valued"] = "plain"
    inner: Inner = Inner()

    def own_needs(self) -> tuple[Column, ...]:
        return (step("cost"),) if self.kind == "valued" else ()

    def own_makes(self) -> tuple[Column, ...]:
        return (Column(self.level, "return"),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"required": 0.0}, "option required=0.0 is not possible; give a number above 0 and below 1"),
        ({"required": 1.0}, "required=1.0"),
        ({"count": 0}, "option count=0 is not possible; give a number of at least 1"),
        ({"count": 1.5}, "count=1.5 is not possible; give a whole number"),
        ({"limit": 0.0}, "option limit=0.0 is not possible; give a number above 0, or None"),
        ({"limit": math.nan}, "limit=nan is not possible; give a finite number or None"),
        ({"name": ""}, "option name='' is not possible; give a text that is not empty"),
        ({"column": ""}, "option column='' is not possible; name a column"),
        ({"level": "node"}, "level='node' is not possible; give one of 'draw', 'step', 'token'"),
        ({"inner": 3}, "inner=3 is not possible; give a Inner"),
        ({"count": Schedule(4, 0, iterations=2)}, "option count=0 is not possible"),
        ({"inner": "x"}, "inner='x'"),
    ],
)
def test_options_out_of_range_are_reported_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Outer(**({"required": 0.5} | options))
    assert Outer(0.5).inner == Inner(0.5)


def test_a_missing_option_without_a_default_is_reported() -> None:
    with pytest.raises(TypeError, match="required"):
        Outer()
    with pytest.raises(RecipeError, match="Outer: option 'required' is missing; add it"):
        Outer.from_dict({})


def test_needs_are_complete() -> None:
    component = Outer(0.5, kind="valued", level="step")
    assert component.needs == (
        draw("score"),
        step("reward"),
        draw("group_id"),
        token("reference_logprob"),
        token("value"),
        step("cost"),
    )
    assert component.makes == (draw("advantage"), step("return"))
    assert {column.name: column.model for column in component.needs if column.model} == {
        "reference_logprob": "reference",
        "value": "critic",
    }
    assert Outer.needs == (draw("score"),), "the class says what is always needed"
    again = pickle.loads(pickle.dumps(component))
    assert (again, again.needs, again.makes) == (component, component.needs, component.makes)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("", ()),
        ("batch", ()),
        ("trained_tokens", ()),
        ("group_id,agent", (draw("group_id"), draw("agent"))),
        (" group_id , agent ", (draw("group_id"), draw("agent"))),
    ],
)
def test_names_of_key_columns(name: str, columns: tuple[Column, ...]) -> None:
    others = (draw("score"), draw("reward"), token("reference_logprob"), token("value"))
    assert set(Outer(0.5, group_by=name).needs) == {*others, *columns}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("reference_logprob", "reference"),
        ("teacher_logprob", "teacher"),
        ("teacher_sum_probability_squared", "teacher"),
        ("behaviour_logprob", None),
        ("entropy", None),
        ("judged", None),
    ],
)
def test_a_column_of_a_model_is_known_by_its_name(name: str, model: str | None) -> None:
    (need,) = [column for column in Outer(0.5, reference=name).needs if column == token(name)]
    assert need.model == model


def test_needs_under_a_schedule() -> None:
    component = Outer(
        Schedule(0.25, 0.75, iterations=4), count=Schedule(1, 9, iterations=4), inner=Inner(Schedule(0, 1, 2))
    )
    assert component.needs == Outer(0.5).needs
    assert component.at(2) == Outer(0.5, count=5, inner=Inner(1.0))
    assert component.at(1) == Outer(0.375, count=3, inner=Inner(0.5))
    again = component.at(1)
    assert again.at(7) is again
    with pytest.raises(RecipeError, match=r"Inner: option share=2\.0 is not possible"):
        Inner(Schedule(0, 2, iterations=4))


def test_columns_are_values() -> None:
    assert token("value", model="critic") == token("value")
    assert hash(token("value", model="critic")) == hash(token("value"))
    assert repr(token("value", model="critic")) == "token('value')"
    level, name = step("cost")
    assert (level, name) == ("step", "cost")


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda: option(at_least=2, at_most=1),
            r"option\(at_least=2, at_most=1\): no number lies between these bounds",
        ),
        (lambda: option(above=1, at_most=1), r"option\(above=1, at_most=1\): no number lies between these bounds"),
        (
            lambda: option(at_least=0, below=0),
            "no number lies between these bounds; give a lower bound below the upper",
        ),
        (lambda: option(at_least="1"), r"option\(at_least='1'\): a bound must be a number"),
        (lambda: option(at_most=True), r"option\(at_most=True\): a bound must be a number"),
        (lambda: option(2.0, at_least=0, at_most=1), r"option\(2\.0, at_least=0, at_most=1\): the default is out of"),
        (lambda: option("x", at_least=0), "the default is out of range; give a number of at least 0"),
        (lambda: option(Schedule(0.5, 2.0, iterations=3), at_most=1), "the default is out of range"),
        (lambda: option(3, filled=True), r"option\(3, filled=True\): filled needs a text or tuple"),
        (lambda: option("", filled=True), "filled needs a text or tuple"),
        (lambda: option("x", filled=True, above=0), r"option\(filled=True, above=0\): a text has no range"),
        (lambda: column_name("score", level="row"), "level is 'row'; give one of 'draw', 'step', 'token', 'level'"),
        (lambda: column_name(3, level="draw"), r"column_name: default is 3; give the name of a column"),
        (
            lambda: column_name("", level="draw"),
            r"column_name\(''\): the name is empty; name a column, or set optional=True",
        ),
    ],
)
def test_an_invalid_option_declaration_is_rejected_immediately(declare: Callable[[], object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        declare()


def test_declarations_that_are_possible() -> None:
    assert option(at_least=1, at_most=1).metadata
    assert option(Schedule(0.0, 1.0, iterations=3), at_least=0, at_most=1).default == Schedule(0.0, 1.0, iterations=3)
    assert option(None, above=0).default is None


@dataclass(frozen=True)
class Nowhere(Component):
    """A component that reads at a level it does not have."""

    column: str = column_name("score", level="level")


def test_the_level_of_a_column_is_an_option_that_is_there() -> None:
    with pytest.raises(RecipeError, match="option column takes the level of its column from an option `level`"):
        Nowhere()
