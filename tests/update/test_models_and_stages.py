"""Recipes with several losses: for models other than the policy, and for stages other than the one after credit."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hand_made import tiny_model
from torch import nn
from updates import columns, grow, of_groups

from agentrl_core import Batch, Recipe, advantage, annotate, loss, recipes
from agentrl_core.exceptions import RecipeError


def with_two_losses() -> dict[str, Recipe]:
    """Return the losses of each system with several models or stages, under a separate credit."""
    result = {}
    for name in ("dapo_direct", "ver_ipo", "vl_dac", "safe", "gui_libra"):
        links = recipes.get(name).at(0).chain("loss")
        trained = {link.model for link in links if isinstance(link, loss.Train)}
        frozen = () if "critic" in trained else ("critic",)
        result[name] = recipes.GRPO.replace(name=name, advantage=advantage.Gae(), loss=links, frozen=frozen)
    return result


RECIPES = with_two_losses()


@functools.cache
def credited(per: str) -> Batch:
    batch = columns(grow(1), 1, per=per)
    return batch.with_columns("token", value=batch.column("old_value", "token"))


def models() -> dict[str, nn.Module]:
    result = {"policy": tiny_model("llama"), "critic": tiny_model("qwen3")}
    torch.manual_seed(5)
    result["critic"].value_head = nn.Linear(32, 2).double()
    return result


def snapshot(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_they_have_two() -> None:
    assert all(len(recipe.chain("loss")) == 2 for recipe in RECIPES.values())


@pytest.mark.parametrize("key", RECIPES)
def test_one_recipe_trains_both(key: str) -> None:
    """Each stage steps only the models that it names."""
    recipe = RECIPES[key]
    recipe.check()
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    stages = dict.fromkeys(getattr(link, "stage", "update") for link in recipe.chain("loss"))
    seen = set()
    for stage in stages:
        named = [training.model for training in recipe.losses(stage)]
        compared = any(of_groups(training.loss) for training in recipe.losses(stage))
        trained = models()
        optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-2) for name, model in trained.items()}
        before = {name: snapshot(model) for name, model in trained.items()}
        updates = recipe.updates(credited("draw" if compared else "token"), stage=stage)
        for update in updates:
            for value in update.gradient_cached(trained[update.model], max_tokens=200):
                value.backward()
            optimizers[update.model].step()
        changed = {name for name, model in trained.items() if not snapshot(model).equal(before[name])}
        assert changed == set(named)
        for training in recipe.losses(stage):
            name = training.model
            prefix = "" if name == "policy" else f"{name}."
            assert updates.metrics[f"{prefix}updates"] == training.epochs * training.minibatches
            assert np.isfinite(updates.metrics[f"{prefix}loss"])
            seen.add((stage, name))
        assert all(metric.startswith("critic.") for metric in updates.metrics) == ("policy" not in named)
    assert len(seen) == 2


def test_each_loss_has_its_own_updates_and_metrics() -> None:
    batch = credited("token")
    critic = loss.Train(loss.Value("token_mean"), model="critic", epochs=3, minibatches=2)
    recipe = recipes.GRPO.replace(loss=(critic, loss.Policy(aggregate="sequence_mean")), minibatches=4)
    updates = recipe.updates(batch, seed=3)
    steps = list(updates)
    assert [update.model for update in steps] == ["critic"] * 6 + ["policy"] * 4
    assert len(updates) == 10
    trained = models()
    trained["critic"].value_head = nn.Linear(32, 1).double()
    for update in steps:
        total = 0.0
        for pack in update.pack(max_tokens=99):
            update.loss(pack.run(trained[update.model]), pack)
            total += pack.streams.weight_kl.sum().item()
        assert total == pytest.approx(1.0, abs=1e-5)
    metrics = updates.metrics
    alone = {}
    for name, link in (("policy", recipe.loss[1]), ("critic", critic)):
        single = recipe.replace(loss=link).updates(batch, seed=3)
        for update in single:
            assert update.model == name
            for pack in update.pack(max_tokens=99):
                update.loss(pack.run(trained[name]), pack)
        alone |= single.metrics
    assert metrics == alone
    assert metrics["critic.updates"] == 6
    assert metrics["updates"] == 4
    assert {"critic.value_error", "ratio"} <= set(metrics)


def test_a_critic_before_the_credit() -> None:
    """Its stage needs no advantage; after it, its values are annotated, and the credit reads them."""
    batch = grow(0)
    batch = batch.with_columns("draw", score=batch.column("reward", "draw"))
    before = loss.Train(loss.Value(), model="critic", stage="before_credit")
    recipe = recipes.GRPO.replace(
        advantage=advantage.Gae(), loss=(before, loss.Train(loss.Value(), model="critic"), loss.Policy())
    )
    recipe.check()
    with pytest.raises(
        RecipeError, match=r"add it before stage 'before_credit': batch = arl\.annotate\(batch, 'return'"
    ):
        recipe.updates(batch, stage="before_credit")
    with pytest.raises(RecipeError, match=r"needs column 'value' at level token; compute it with a model: .* critic\)"):
        recipe.updates(batch)
    critic = models()["critic"]
    critic.value_head = nn.Linear(32, 1).double()
    fitted = batch.with_columns("draw", **{"return": batch.column("reward", "draw")})
    (update,) = recipe.updates(fitted, stage="before_credit")
    assert update.model == "critic"
    assert not fitted.has("advantage", "token")
    ready = recipe.credit(annotate(batch, "value", critic))
    assert [update.model for update in recipe.updates(ready)] == ["critic", "policy"]


def test_invalid_losses_and_stages_of_a_recipe_are_rejected() -> None:
    critic = loss.Train(loss.Value(), model="critic")
    with pytest.raises(RecipeError, match="stage 'update' has more than one loss of model 'critic'; add them with"):
        recipes.GRPO.replace(loss=(critic, loss.Policy(), critic))
    with pytest.raises(RecipeError, match="more than one loss of model 'policy'"):
        recipes.GRPO.replace(loss=(loss.Policy(), loss.Train(loss.Imitation())))
    with pytest.raises(RecipeError, match="no component for stage 'warm_up'; use one of: update"):
        recipes.GRPO.replace(loss=(critic, loss.Policy())).losses("warm_up")
    with pytest.raises(RecipeError, match="no component for stage 'update'; add a loss: replace"):
        recipes.GRPO.replace(loss=None).losses()
    with pytest.raises(RecipeError, match=r"loss\.Train: option model='the critic' is not possible; give a name"):
        loss.Train(loss.Value(), model="the critic")
    with pytest.raises(RecipeError, match="option epochs=0 is not possible"):
        loss.Train(loss.Value(), epochs=0)


def test_one_loss_alone_is_itself() -> None:
    recipe = recipes.GRPO.replace(loss=(loss.Policy(),), epochs=3)
    assert recipe == recipes.GRPO.replace(loss=loss.Policy(), epochs=3)
    (training,) = recipe.losses()
    assert training == loss.Train(loss.Policy(), epochs=3, minibatches=recipe.minibatches)
