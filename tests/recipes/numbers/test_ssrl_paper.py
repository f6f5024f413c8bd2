"""Worked examples of the paper of ssrl, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, plain_reward, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("ssrl")
LOSSES = given_advantages(recipes.SSRL)
MASKED = LOSSES.replace(weight=recipes.SSRL.weight)


@EXAMPLES.by("reward of four responses")
def reward(example: Example) -> Found:
    pairs = zip(example.values["em"].tolist(), example.values["F"].tolist(), strict=True)
    members = [
        {"path": "1 | 3", "reward": 0, "success": right > 0, "rewards": {"format": form}} for right, form in pairs
    ]
    result = computed(recipes.SSRL.replace(weight=None), ["draw.score"], members=members)
    return {"reward": result["draw.score"]}


@EXAMPLES.by("advantages of five responses, and of a group with one fewer")
def groups(example: Example) -> Found:
    recipe = plain_reward(recipes.SSRL.replace(weight=None))
    five, four = advantages(recipe, example.values["R"], example.values["less"])
    return {"five": five, "four": four}


@EXAMPLES.by("two searches of its own, masked")
def masked(example: Example) -> Found:
    """The second response has an advantage of 1."""
    given, other = example.values, int(example.values["other"])
    token_count = len(given["m"])
    columns = {
        "simulated": [*(1 - given["m"]).tolist(), *[0] * other],
        "reference_logprob": [-1.0] * (token_count + other),
    }
    gradient = computed(
        MASKED,
        ["gradient.logprob"],
        members=answers([token_count, other], [float(given["A"]), 1.0]),
        columns={"token": columns},
    )["gradient.logprob"]
    return {"tokens": -1 / gradient[-1:], "gradient_to_log_probability": gradient[:token_count]}


@EXAMPLES.by("loss after a step, with a third clip for negative advantages")
def clipped(example: Example) -> Found:
    old, advantage_values = np.full(len(example.values["A"]), -2.0), example.values["A"]
    new = old + np.log(example.values["rho"])
    alone = [
        single_tokens(LOSSES, *(each[[at]] for each in (old, new, advantage_values)))["loss"] for at in range(len(old))
    ]
    return {"losses": np.concatenate(alone), "mean": single_tokens(LOSSES, old, new, advantage_values)["loss"]}


def diverged(now: Value, reference: Value, simulated: Value) -> Value:
    """Return the loss of a response without an advantage."""
    columns = {"simulated": simulated.tolist(), "reference_logprob": reference.tolist()}
    members = answers([len(now)], [0.0])
    policy = {"logprob": now.tolist()}
    return computed(MASKED, ["loss"], members=members, columns={"token": columns}, policy=policy)["loss"]


@EXAMPLES.by("divergence from the model of the start, after some rounds")
def divergence(example: Example) -> Found:
    given = example.values
    loss = diverged(given["lp"], given["lp_ref"], 1 - given["m"])
    np.testing.assert_allclose(loss, example.expect["loss"], rtol=1e-5)  # closer than the tolerance of a number near 0
    pairs = zip(given["lp"][:, None], given["lp_ref"][:, None], strict=True)
    each = [diverged(now, reference, np.zeros(1)) for now, reference in pairs]
    return {"divergence": np.concatenate(each) / 0.001, "loss": loss}


def test_the_divergence_of_a_token_is_at_most_ten() -> None:
    loss = diverged(np.array([-4.0]), np.array([-1.0]), np.zeros(1))
    np.testing.assert_allclose(loss, 0.01, rtol=1e-6)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
