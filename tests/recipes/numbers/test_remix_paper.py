"""Worked examples of the paper of remix, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, path_of, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("remix")
REMIX = recipes.REMIX
CommonExamples(EXAMPLES, REMIX)
LOSSES = given_advantages(REMIX, kl=None, drift=None)
COEFFICIENT = REMIX.at(0).loss.kl.coefficient
"""The coefficient of both divergences together."""


def loss(recipe: Recipe, behaviour: Value, current: Value, new: Value, advantage_values: Value, **more: Any) -> float:
    """Return the loss of tokens that one policy sampled and that train another one."""
    return float(
        single_tokens(recipe, behaviour, new, advantage_values, proximal_logprob=current.tolist(), **more)["loss"][0]
    )


@EXAMPLES.by("old tokens with a shifted clip")
def old_tokens(example: Example) -> Found:
    given = [example.values[name] for name in ("behaviour", "current", "new", "A")]
    alone = [-loss(LOSSES, *(each[[at]] for each in given)) for at in range(len(given[0]))]
    return {"objective": np.array(alone), "loss": loss(LOSSES, *given)}


@EXAMPLES.by("fresh tokens: PPO")
def fresh_tokens(example: Example) -> Found:
    current, new, advantage_values = (example.values[name] for name in ("current", "new", "A"))
    return {"loss": loss(LOSSES, current, current, new, advantage_values)}


@EXAMPLES.by("the second pass over a batch")
def passes(example: Example) -> Found:
    """The loss is half of the sum of both passes, for a policy that does not move between them."""
    given, behaviour = example.values, np.full(2, -1.0)
    twice = LOSSES.replace(epochs=REMIX.epochs)
    current = behaviour + np.log(given["c"])
    first, second = (
        loss(twice, behaviour, current, current + moved, given["A"]) / 2 for moved in (np.zeros(2), given["d"])
    )
    return {"first": first, "second": second}


@EXAMPLES.by("coefficient of the base over the steps")
def stairs(example: Example) -> Found:
    """Iterations are counted from 0, hooks from 1."""
    steps = example.values["t"].astype(int).tolist()
    lam = [REMIX.at(step).loss.kl.coefficient / COEFFICIENT for step in steps]
    moved = [any(REMIX.hooks.is_due(number) for number in range(1, step + 1)) for step in steps]
    stored = [REMIX.at(step).replay is not None for step in steps]
    assert moved == [not each for each in stored]
    return {"lambda": np.array(lam), "base_is_pi_T": np.array(moved)}


@EXAMPLES.by("constraint of one state")
def constraint(example: Example) -> Found:
    """The mean of the estimates over the policy's own tokens; 75 is an iteration with this share."""
    given = example.values
    p, base, last = (np.log(given[name]) for name in ("p", "base", "last"))

    def divergence(iteration: int) -> float:
        recipe = given_advantages(REMIX.at(iteration))
        alone = [
            loss(recipe, p[[at]], last[[at]], p[[at]], np.zeros(1), reference_logprob=base[[at]]) for at in range(2)
        ]
        return float(given["p"] @ alone) / COEFFICIENT

    total, of_base, share = divergence(75), divergence(0), float(given["lam"])
    return {"kl_base": of_base, "kl_last": (total - share * of_base) / (1.0 - share), "constraint": total}


@EXAMPLES.by("a group of one (convention)")
def alone(example: Example) -> Found:
    return {"advantage": advantages(REMIX, np.ravel(example.values["R"]).tolist())[0]}


@EXAMPLES.by("two responses of unequal length")
def unequal(example: Example) -> Found:
    given = example.values
    members = [
        {"path": path_of(given[f"mask_{name}"]), "reward": reward}
        for name, reward in zip("ab", given["A"].tolist(), strict=True)
    ]
    count = int(given["mask_a"].sum() + given["mask_b"].sum())
    columns = {"token": {"proximal_logprob": [-1.0] * count}}
    return {"loss_token_mean": computed(LOSSES, ["loss"], members=members, columns=columns)["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
