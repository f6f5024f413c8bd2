"""Worked examples of the paper of mini_rl, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, one_rollout, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("mini_rl")
CommonExamples(EXAMPLES, recipes.MINI_RL)
LOSSES = given_advantages(recipes.MINI_RL)


def coefficients(example: Example, now: str, **options: Any) -> Value:
    """Return the gradient factors of log p of one-token rollouts, from the policy's log-probs of this name."""
    given = example.values
    own_tokens = given["mask"] > 0 if "mask" in given else np.ones(len(given["mu"]), bool)
    mu, old, new = (given[name][own_tokens] for name in ("mu", "old", now))
    result = single_tokens(
        given_advantages(recipes.MINI_RL, **options),
        mu,
        new,
        np.broadcast_to(given["A"], len(given["mu"]))[own_tokens],
        proximal_logprob=old,
    )
    return -len(mu) * result["gradient.logprob"]


@EXAMPLES.by("five tokens of one response, first mini-batch")
def first_step(example: Example) -> Found:
    """The coefficients belong to one rollout, which includes the tool's token."""
    given = example.values
    own_tokens = given["mask"] > 0
    losses = LOSSES.replace(loss=given_advantages(recipes.MINI_RL, clip=None, mask=None).loss)
    advantages = np.full(len(own_tokens), given["A"])
    coefficient = np.zeros(len(own_tokens))
    coefficient[own_tokens] = -one_rollout(losses, given["mu"], given["old"], advantages, own_tokens)[
        "gradient.logprob"
    ]
    np.testing.assert_allclose(coefficient[own_tokens], coefficients(example, "old"), rtol=1e-5)
    return {"coefficient": coefficient}


@EXAMPLES.by("a later mini-batch")
def later_step(example: Example) -> Found:
    coefficient = coefficients(example, "new")
    return {
        "mask": coefficient != 0,
        "weight": coefficients(example, "new", mask=None) / example.values["A"],
        "coefficient": coefficient,
        "coefficient_at_first_step": coefficients(example, "old"),
    }


@EXAMPLES.by("no division by the length")
def lengths(example: Example) -> Found:
    first, second = example.values["L"].astype(int).tolist()
    paths = [f"1 | 3*{first - 15} ~ 9 | 3*15", f"1 | 3*{second}"]
    members = [
        {"path": path, "reward": reward} for path, reward in zip(paths, example.values["A"].tolist(), strict=True)
    ]
    columns = {"token": {"proximal_logprob": [-1.0] * (first + second)}}
    gradient = computed(LOSSES, ["gradient.logprob"], members=members, columns=columns)["gradient.logprob"]
    return {
        "sum_of_coefficients": -2 * np.array([gradient[:first].sum(), gradient[first:].sum()]),
        "loss": gradient.sum(),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
