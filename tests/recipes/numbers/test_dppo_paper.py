"""Worked examples of the paper of dppo, computed by the recipe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, path_of, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.loss import Reinforce, Tokens
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.dppo import DivergenceMask

EXAMPLES = PaperExamples("dppo")
CommonExamples(EXAMPLES, recipes.DPPO)
BOUNDED = given_advantages(recipes.DPPO)
FREE = given_advantages(recipes.DPPO, surrogate=Reinforce("ratio", "ratio"))
"""The recipe without the bound of the ratio: the gradient of equation 12."""
BY_KL = given_advantages(recipes.DPPO, surrogate=Reinforce("ratio", "ratio"), mask=DivergenceMask("kl", 0.05, 0.05))


def _objective(recipe: Recipe, mu: Value, new: Value, advantages: Value) -> Value:
    """Return M r A of each token: its gradient by the log-prob."""
    gradient = single_tokens(recipe, np.log(mu), np.log(new), advantages)["gradient.logprob"]
    return -gradient * len(advantages)


@EXAMPLES.by("binary TV: rare tokens stay, likely ones are masked")
def total_variation(example: Example) -> Found:
    objective = _objective(FREE, *(example.values[name] for name in ("mu", "new", "A")))
    return {"objective": objective, "mask": objective != 0}


@EXAMPLES.by("binary KL")
def binary_kl(example: Example) -> Found:
    return {"mask": _objective(BY_KL, *(example.values[name] for name in ("mu", "new", "A"))) != 0}


@EXAMPLES.by("top-2 and the sampled token")
def likeliest(example: Example) -> Found:
    old, new = (torch.from_numpy(example.values[name])[None].log() for name in ("mu", "new"))

    def divergence(kind: Literal["tv", "kl"], support: Literal["sampled", "top"]) -> float:
        streams = {"weight_kl": torch.ones(1), "old_logprob": old[:, 2], "token": torch.tensor([9])}
        streams |= {"sampler_top_ids": torch.tensor([[3, 4]]), "sampler_top_logprobs": old[:, :2]}
        outputs = SimpleNamespace(top_logprobs=torch.cat([new[:, :2], torch.zeros(1, 1)], dim=1))
        return DivergenceMask(kind, support=support).divergence(Tokens(new[:, 2], None, streams, outputs)).item()

    return {
        "tv": divergence("tv", "top"),
        "kl": divergence("kl", "top"),
        "binary_tv": divergence("tv", "sampled"),
    }


@EXAMPLES.by("gradient weights, tool tokens out")
def weights(example: Example) -> Found:
    given = example.values
    own_tokens = given["m"] > 0

    def token_weights(recipe: Recipe) -> Value:
        members = [
            {
                "path": path_of(given["m"]),
                "reward": float(given["A"]),
                "logprobs": np.log(given["mu"][own_tokens]).tolist(),
            }
        ]
        policy = {"logprob": np.log(given["new"][own_tokens]).tolist()}
        gradient = computed(recipe, ["loss", "gradient.logprob"], members=members, policy=policy)["gradient.logprob"]
        weight = np.zeros(len(own_tokens))
        weight[own_tokens] = -gradient * own_tokens.sum()
        return weight

    return {"weight_of_grad_log_pi": token_weights(BOUNDED), "weight_if_C_is_infinite": token_weights(FREE)}


@EXAMPLES.by("the second optimizer step of a batch")
def later_step(example: Example) -> Found:
    mu, first, second, advantages = (example.values[name] for name in ("mu", "first", "second", "A"))
    moved = _objective(FREE, mu, second, advantages)
    return {
        "first_objective": _objective(FREE, mu, first, advantages).sum(),
        "second_mask": moved != 0,
        "second_objective": moved.sum(),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
