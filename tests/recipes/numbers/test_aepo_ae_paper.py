"""Worked examples of the paper of aepo_ae, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from case_files import rollouts
from common_examples import advantages, given_advantages, plain_reward, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Rounds

EXAMPLES = PaperExamples("aepo_ae")
RECIPE = recipes.AEPO_AE
GIVEN = RECIPE.replace(advantage=GroupRelative(center="none", scale="none"), minibatches=1)
"""The reward of a rollout is its advantage, and a batch is one optimizer step."""


def member(group: str, reward: float, *, tilted: bool = True, **more: Any) -> dict[str, Any]:
    return {"group": group, "path": "1 | 3", "reward": reward, "facts": {"tilted": int(tilted)}, **more}


def recipe_after(entropy: float) -> Recipe:
    """Return the recipe in the iteration after one that ended at this entropy."""
    record = IterationRecord.of(rollouts([member("a", 0.0)], 0), {"entropy": entropy})
    return RECIPE.at(1, RECIPE.next_states({}, record))


def kept_tilted(recipe: Recipe, *groups: Sequence[float]) -> list[Value]:
    """Return which samples at temperature T are kept, for groups with these rewards and as many plain, better ones."""
    members = [
        member(str(place), reward if tilted else 2.0, tilted=tilted)
        for place, rewards in enumerate(groups)
        for tilted in (False, True)
        for reward in rewards
    ]
    keep = computed(recipe, ["draw.keep"], members=members)["draw.keep"]
    is_tilted = [bool(each["facts"]["tilted"]) for each in members]
    return np.split(keep[is_tilted], np.cumsum([len(rewards) for rewards in groups])[:-1])


@EXAMPLES.by("entropy below, at and above the target")
def temperature(example: Example) -> Found:
    results = []
    for recipe in (RECIPE.at(0), *map(recipe_after, example.values["H"][1:].tolist())):
        assert isinstance(recipe.rollout, Rounds)
        assert recipe.rollout.members.others is not None
        results.append(recipe.rollout.members.others.temperature)
    return {"temperature": np.array(results)}


@EXAMPLES.by("which samples of the regulator are kept, and how many are used")
def used(example: Example) -> Found:
    given = example.values
    one, other, third = kept_tilted(RECIPE.at(0), given["R"], given["S"], given["U"])
    pairs = [[1.0, 0.0]] * int(given["kept_in_all"])
    return {
        "keep_r": one,
        "keep_s": other,
        "keep_u": third,
        "used_below_target": np.sum(kept_tilted(recipe_after(0.42), *pairs)),
        "used_above_target": np.sum(kept_tilted(recipe_after(0.61), *pairs)),
    }


def test_at_most_sixty_samples_take_a_place() -> None:
    assert np.sum(kept_tilted(recipe_after(0.42), *[[1.0, 0.0]] * 70)) == 60
    assert np.sum(kept_tilted(recipe_after(0.61), *[[1.0, 0.0]] * 70)) == 30


@EXAMPLES.by("rows of the batch: two of the regulator take the place of two")
def rows(example: Example) -> Found:
    given = example.values
    (weight,) = RECIPE.chain("weight")
    recipe = GIVEN.replace(weight=replace(weight, at_most=int(given["n"])))
    members = [member("a", 0.9) for _ in range(int(given["kept"]))]
    members += [member("a", reward, tilted=False) for reward in given["batch"].tolist()]
    result = computed(recipe, ["draw.advantage", "draw.keep"], members=members)
    return {"advantage": result["draw.advantage"][result["draw.keep"] > 0]}


@EXAMPLES.by("loss with a row at temperature 1.2 whose old log-probability is that of temperature 1")
def loss(example: Example) -> Found:
    given = example.values
    sampled, old, new = (given[name].tolist() for name in ("sampled_at_T", "old", "new"))
    members = [
        member("a", 0.9) | {"path": "1 | 3 4", "logprobs": sampled, "temperature": 1.2},
        member("a", 0.3, tilted=False),  # another sample takes its place
        member("a", float(given["A_2"]), tilted=False) | {"path": "1 | 3 4 5"},
    ]
    result = computed(
        GIVEN,
        ["loss", "gradient.logprob", "token.inverse_temperature"],
        members=members,
        columns={"token": {"recomputed_logprob": [*old, -1.0, *given["old_2"].tolist()]}},
        policy={"logprob": [*new, -1.0, *given["new_2"].tolist()]},
    )
    assert (result["token.inverse_temperature"] == 1.0).all()
    return {"ratio_of_regulator": -5 * result["gradient.logprob"][:2], "loss": result["loss"]}


@EXAMPLES.by("a group of one gives nothing to the regulator")
def alone(example: Example) -> Found:
    rewards = np.ravel(example.values["R"]).tolist()
    group_alone = advantages(plain_reward(RECIPE).replace(weight=None), rewards, facts={"tilted": 1})
    return {"advantage": group_alone[0], "keep": kept_tilted(RECIPE, rewards)[0]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    rewards = [*example.values["R"].tolist(), np.nan]
    return {"advantage": advantages(plain_reward(RECIPE).replace(weight=None), rewards, facts={"tilted": 1})[0]}


@EXAMPLES.by("the second optimizer step clips rows of both kinds")
def second_step(example: Example) -> Found:
    old = np.full(len(example.values["A"]), -1.0)
    result = single_tokens(given_advantages(RECIPE), old, old + np.log(example.values["second"]), example.values["A"])
    return {"loss": result["loss"], "has_gradient": result["gradient.logprob"] != 0}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
