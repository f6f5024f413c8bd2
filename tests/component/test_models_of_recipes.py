"""A recipe's models are trained, moved or declared frozen, and filters of the policy do not apply to a critic."""

from __future__ import annotations

import numpy as np
import pytest
from rollouts import small

from agentrl_core import loss, recipes
from agentrl_core.advantage import Gae
from agentrl_core.component.requirements import check_models
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.schedule import SyncModel

CRITIC = loss.Train(loss.Value(), model="critic")
JUDGED = recipes.GRPO.replace(advantage=Gae())
ALL = [recipe for recipe in (recipes.get(name) for name in recipes.names()) if recipe.chain("loss")]


def test_a_critic_that_nothing_trains_is_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"column 'value' is read from model 'critic', which no loss trains and no hook"
    ):
        JUDGED.check()


@pytest.mark.parametrize(
    "recipe",
    [
        JUDGED.replace(loss=(CRITIC, loss.Policy())),
        JUDGED.replace(loss=(loss.Train(loss.Value(), model="critic", stage="before_credit"), loss.Policy())),
        JUDGED.replace(hooks=SyncModel("policy", "critic")),
        JUDGED.replace(frozen=("critic",)),
        recipes.GRPO.replace(loss=loss.Policy(kl=loss.KL(0.1))),
    ],
)
def test_a_model_that_changes_or_is_declared_is_not(recipe: Recipe) -> None:
    recipe.check()
    assert Recipe.from_toml(recipe.to_toml()) == recipe


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_models_of_every_recipe(recipe: Recipe) -> None:
    trained = {training.model for training in recipe._trainings}
    check_models(recipe.name, recipe.model_columns, trained, recipe.chain("hooks"), recipe.frozen)


def test_a_hook_that_reads_a_model_does_not_move_it() -> None:
    with pytest.raises(RecipeError, match="model 'critic'"):
        JUDGED.replace(hooks=SyncModel("critic", "policy")).check()


@pytest.mark.parametrize("value", ["critic", ("",), (1,)])
def test_frozen_must_be_a_tuple_of_names(value: object) -> None:
    with pytest.raises(RecipeError, match=r"frozen=.* is not possible; give a tuple of names"):
        JUDGED.replace(frozen=value)


def test_filters_of_the_policy_do_not_reach_a_critic() -> None:
    batch = small([(0, [2]), (0, [2])], draw_score=[1.0, 0.0], token_value=[0.0] * 4, draw_keep=[1.0, 0.0])
    batch = JUDGED.credit(batch)
    for critic, trained in ((CRITIC, 4), (loss.Train(loss.Value(), model="critic", keep=True), 2)):
        recipe = JUDGED.replace(loss=(critic, loss.Policy()))
        counts = {
            update.model: sum(len(pack.token) for pack in update.pack(max_tokens=100, layout="sequence"))
            for update in recipe.updates(batch)
        }
        assert counts == {"critic": trained, "policy": 2}
    values = loss.Train(loss.Value())
    assert values.is_filtered, "a value head of the policy is filtered with it"
    assert np.array_equal(batch.column("keep", "draw"), [1.0, 0.0])
