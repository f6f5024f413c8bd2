"""Options that hold several items are tuples, whatever form they are given in."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from agentrl_core import Recipe, loss, renames
from agentrl_core.component import Component, option
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipes.scaling_inter import Horizon
from agentrl_core.rollout import SelfPlay


@dataclass(frozen=True)
class Several(Component):
    """A component with options of several items."""

    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = option((1, 2), at_least=1)
    shares: tuple[float, ...] | None = None


@pytest.mark.parametrize("sizes", [(3, 4), [3, 4], "3,4", " 3 , 4 "])
def test_every_form_is_kept_as_a_tuple(sizes: Any) -> None:
    assert Several(sizes=sizes).sizes == (3, 4)
    assert hash(Several(sizes=sizes)) == hash(Several(sizes=(3, 4)))
    assert Several(names=["one", "two"], shares=[1, 0.5]) == Several(names="one,two", shares=(1.0, 0.5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": (0,)}, "option sizes=.0,. is not possible; give one item or more, each a number of at least 1"),
        ({"sizes": ()}, "give one item or more"),
        ({"sizes": "a"}, "option sizes=.* is not possible; give a tuple of whole numbers"),
        ({"sizes": (1, 2.5)}, "give a tuple of whole numbers"),
        ({"sizes": 3}, "option sizes=3 is not possible; give a tuple of whole numbers"),
        ({"names": ("one", "")}, "give a tuple of texts that are not empty"),
        ({"names": ("one", 2)}, "give a tuple of texts that are not empty"),
        ({"names": "one,,two"}, "give a tuple of texts that are not empty"),
        ({"shares": (float("nan"),)}, "give a tuple of numbers or None"),
    ],
)
def test_invalid_tuples_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Several(**options)


def test_toml_has_lists() -> None:
    recipe = Recipe(name="mine", rollout=SelfPlay(agents=("one", "two"), helpers=("two",)), loss=loss.Policy())
    text = recipe.to_toml()
    assert 'agents = ["one", "two"]' in text
    assert Recipe.from_toml(text) == recipe == pickle.loads(pickle.dumps(recipe))
    assert Recipe.from_toml(text.replace('["one", "two"]', '"one,two"')) == recipe
    staged = recipe.replace(rollout=Horizon(stages=(2, 3)))
    assert "stages = [2, 3]" in staged.to_toml()
    assert Recipe.from_toml(staged.to_toml()).rollout.stages == (2, 3)


def test_texts_of_earlier_builds_are_lists() -> None:
    names = renames.table()
    parsed = names.component("agentrl_core.rollout", {"component": "Play", "agents": "one, two", "helpers": ""})
    assert parsed == {"component": "SelfPlay", "agents": ["one", "two"], "helpers": []}
    parsed = names.component("agentrl_core.rollout", {"component": "Horizon", "stages": "10,20", "every": 5})
    assert parsed == {"component": "agentrl_core.recipes.scaling_inter:Horizon", "stages": [10, 20], "every": 5}
