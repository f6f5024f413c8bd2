"""Components outside the package: in a recipe, in its TOML, and after a restart."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl_core import Batch, Forest, loss
from agentrl_core.component import IterationRecord
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe

SOURCE = '''
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from agentrl_core import loss
from agentrl_core.component import BatchComponent, Column, Rows, StatefulComponent, column_name, draw, option
from agentrl_core.loss.base import WeightedLoss, metric_sums


@dataclass(frozen=True)
class Centred(StatefulComponent):
    """advantage = coefficient (score - mean of the scores of all iterations before)."""

    phase: ClassVar[str] = "advantage"
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    coefficient: float = option(1.0, above=0)
    column: str = column_name("score", level="draw")

    def initial_state(self) -> dict[str, Any]:
        return {"sum": 0.0, "count": 0}

    def add_columns(self, state, batch):
        rows = Rows(batch, "draw")
        mean = state["sum"] / max(state["count"], 1)
        return rows.write(advantage=self.coefficient * (rows.values(self.column) - mean))

    def next(self, state, closed):
        scores = Rows(closed.batch, "draw").values(self.column)
        return {"sum": state["sum"] + float(scores.sum()), "count": state["count"] + len(scores)}


@dataclass(frozen=True)
class Forgetful(BatchComponent):
    """Returns nothing."""

    phase: ClassVar[str] = "advantage"
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)
    returns: Literal["none", "batch", "unknown"] = "none"

    def __call__(self, batch):
        if self.returns == "unknown":
            return batch.with_columns("draw", advantage=[float("nan")] * batch.num_draws)
        return batch if self.returns == "batch" else None


@dataclass(frozen=True)
class Halved(WeightedLoss):
    """L = - 1/2 sum of w A log p, with a part of the package inside."""

    reads: ClassVar = ("weight_kl", "advantage_positive", "advantage_negative")

    kl: loss.KL | None = None

    def evaluate(self, tokens):
        pull = tokens.advantage_positive + tokens.advantage_negative
        return -0.5 * (pull * tokens.logprob).sum(), metric_sums(tokens)


class NoComponent:
    pass
'''


@pytest.fixture
def components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    (tmp_path / "my_components.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(tmp_path)
    import my_components

    yield my_components
    del sys.modules["my_components"]


def rollouts(iteration: int, scores: list[float]) -> Batch:
    forest = Forest(iteration=iteration)
    forest.add_group(0, "task")
    for member, score in enumerate(scores):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, 2], kind="action", logprobs=[-1.0, -1.0])
        forest.finish(trajectory, reward=score, success=True)
    return forest.freeze()


def test_toml_leads_to_anybodys_components(components: object) -> None:
    recipe = Recipe(name="mine", advantage=components.Centred(coefficient=0.5), loss=components.Halved(kl=loss.KL(0.1)))
    recipe.check()
    text = recipe.to_toml()
    assert 'component = "my_components:Centred"' in text
    assert 'component = "my_components:Halved"' in text
    assert 'component = "KL"' in text
    assert Recipe.from_toml(text) == recipe


def test_a_custom_loss_is_evaluated(components: object) -> None:
    gain, pull = torch.tensor([0.5, 0.0]), torch.tensor([0.0, -0.25])
    streams = {"weight_kl": torch.full((2,), 0.5), "advantage_positive": gain, "advantage_negative": pull}
    value, metrics = components.Halved().evaluate(loss.Tokens(torch.tensor([-1.0, -4.0]), None, streams))
    assert value.item() == -0.5 * (0.5 * -1.0 + -0.25 * -4.0)
    assert metrics["tokens"].item() == 2


def test_it_remembers_by_its_place(components: object) -> None:
    recipe = Recipe(name="mine", advantage=components.Centred(), loss=loss.Policy())
    first = recipe.credit(recipe.score(rollouts(0, [1.0, 3.0])))
    np.testing.assert_array_equal(first.column("advantage", "draw"), [1.0, 3.0])
    state = recipe.next_states({}, IterationRecord.of(first))
    assert state == {"advantage[0].Centred": {"sum": 4.0, "count": 2}}
    assert recipe.next_states({}, IterationRecord.of(first)) == state  # any number of times
    second = recipe.credit(recipe.score(rollouts(1, [1.0, 3.0]).with_state(state)))
    np.testing.assert_array_equal(second.column("advantage", "draw"), [-1.0, 1.0])
    assert recipe.next_states(state, IterationRecord.of(second)) == {"advantage[0].Centred": {"sum": 8.0, "count": 4}}


def test_two_components_of_one_class_have_separate_states(components: object) -> None:
    recipe = Recipe(
        name="mine", advantage=(components.Centred(), components.Centred(column="advantage")), loss=loss.Policy()
    )
    state = recipe.next_states({}, IterationRecord.of(recipe.credit(recipe.score(rollouts(0, [1.0, 3.0])))))
    assert list(state) == ["advantage[0].Centred", "advantage[1].Centred"]


@pytest.mark.parametrize(
    ("component", "message"),
    [
        ("no_such_module:Centred", r"'no_such_module:Centred' cannot be imported: No module named 'no_such_module'"),
        ("my_components:Missing", r"'my_components:Missing' does not exist"),
        ("my_components:NoComponent", r"'my_components:NoComponent' is not a component"),
        ("agentrl_core.component:BatchComponent", "is abstract"),
        (":Centred", "cannot be imported"),
        ("Centred", r"component 'Centred' does not exist.*\"package.module:Class\""),
        ("agentrl_core.loss:Policy", "is not a component of phase advantage"),
    ],
)
@pytest.mark.usefixtures("components")
def test_addresses_that_lead_nowhere(component: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.from_dict({"name": "mine", "advantage": {"component": component}})


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ("none", r"Forgetful \(phase advantage\) returned None; return the batch with its columns"),
        (
            "batch",
            r"Forgetful \(phase advantage\) declares column 'advantage' at level draw in makes but did not write it",
        ),
        ("unknown", r"Forgetful \(phase advantage\) gives 2 trained tokens the advantage nan \(the first is token 1"),
    ],
)
def test_the_return_value_of_a_component_is_checked(components: object, returns: str, message: str) -> None:
    recipe = Recipe(name="mine", advantage=components.Forgetful(returns), loss=loss.Policy())
    with pytest.raises(RecipeError, match=message):
        recipe.credit(recipe.score(rollouts(0, [1.0, 3.0])))
