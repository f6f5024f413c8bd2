"""Worked examples of the paper of reinforce_plus_plus_baseline, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, path_of, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.select import Band, DynamicSampling
from agentrl_core.weight import ImportanceWeight

EXAMPLES = PaperExamples("reinforce_plus_plus_baseline")
RECIPE = recipes.REINFORCE_PLUS_PLUS_BASELINE
LOSSES = given_advantages(RECIPE)
CENTRED, WHITENING = RECIPE.chain("advantage")


def normalised(**options: Any) -> Recipe:
    """Return the recipe with another normalisation over the batch."""
    return RECIPE.replace(advantage=(CENTRED, replace(WHITENING, **options)))


@EXAMPLES.by("two groups of unequal size and responses of unequal length")
def groups(example: Example) -> Found:
    rewards = [*example.values["R"].tolist(), *example.values["S"].tolist()]
    members = [
        {**member, "group": name} for member, name in zip(answers([3, 1, 2, 1, 2], rewards), "aaabb", strict=True)
    ]
    tokens = {"reference_logprob": [-1.0] * 9}

    def compute(recipe: Recipe) -> Value:
        return computed(recipe, ["token.advantage"], members=members, columns={"token": tokens})["token.advantage"]

    return {
        "advantage_of_tokens": compute(RECIPE),
        "advantage_of_tokens_in_verl": compute(normalised(ddof=1, scale_at_least=0.0, variance_eps=1e-8)),
        "advantage_of_samples_by_the_appendix": compute(normalised(level="draw"))[[0, 3, 4, 6, 7]],
    }


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    in_verl = normalised(ddof=1).chain("advantage")
    raw = RECIPE.replace(advantage=(replace(in_verl[0], singleton="raw"), in_verl[1]))
    reward_groups = example.values["R"], np.ravel(example.values["S"])
    return {
        "advantage": np.concatenate(advantages(RECIPE, *reward_groups)),
        "advantage_in_verl": np.concatenate(advantages(raw, *reward_groups)),
    }


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage": advantages(RECIPE, [*example.values["R"], np.nan])[0]}


@EXAMPLES.by("loss over two turns with a tool token and k2")
def two_turns(example: Example) -> Found:
    """The example has lambda 0.1; each turn is a rollout, because their advantages differ."""
    given = example.values
    own_tokens = given["mask"] > 0
    old, first, second, ref, values = (given[name][own_tokens] for name in ("old", "first", "second", "ref", "A"))
    policy = LOSSES.loss
    priced = LOSSES.replace(loss=replace(policy, kl=replace(policy.kl, coefficient=0.1)))
    free = LOSSES.replace(loss=replace(policy, kl=None))
    members = [
        {"path": path_of(given["mask"][:3]), "reward": float(values[0])},
        {"path": "1 | 3", "reward": float(values[2])},
    ]

    def loss(recipe: Recipe, now: Value) -> Value:
        columns = {"token": {"reference_logprob": ref}}
        assert (old == -1).all()
        return computed(recipe, ["loss"], members=members, columns=columns, policy={"logprob": now.tolist()})["loss"]

    return {
        "first_loss": loss(priced, first),
        "second_loss": loss(priced, second),
        "k2_of_second": (loss(priced, second) - loss(free, second)) / 0.1,
    }


@EXAMPLES.by("correction for the engine")
def corrected(example: Example) -> Found:
    given = example.values
    results = {}
    for name, kind in (("loss", "mask"), ("loss_with_clamp", "truncate")):
        weight = ImportanceWeight(at_least=0.5, at_most=5.0, kind=kind)
        recipe = LOSSES.replace(weight=weight, old_logprob="recomputed")
        tokens = {"recomputed_logprob": given["old"]}
        results[name] = single_tokens(recipe, given["rollout"], given["new"], given["A"], **tokens)["loss"]
    return results


@EXAMPLES.by("dynamic filter")
def filtered(example: Example) -> Found:
    rewards = [example.values[name] for name in "RST"]
    places = np.repeat(np.arange(3, dtype=np.uint32), [len(each) for each in rewards])
    return {"kept": RECIPE.replace(admit=DynamicSampling(Band())).admit(np.concatenate(rewards), places)}


def test_the_penalty_is_that_of_the_script() -> None:
    tokens = np.full(1, -1.0), np.full(1, -1.0), np.zeros(1)
    result = single_tokens(LOSSES, *tokens, reference_logprob=np.full(1, -21.0))
    np.testing.assert_allclose(result["loss"], 1e-5 * 200)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
