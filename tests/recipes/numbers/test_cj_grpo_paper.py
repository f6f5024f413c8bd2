"""Worked examples of the paper of cj_grpo, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("cj_grpo")
CommonExamples(EXAMPLES, recipes.CJ_GRPO)
WITHOUT_KL = given_advantages(recipes.CJ_GRPO, kl=None)


def response_numbers(recipe: Recipe, rewards: list[float], *responses: list[Value]) -> dict[str, Any]:
    """Return the numbers of responses, each given by the log-ratios of its decode steps."""
    ratios = np.concatenate([step for steps in responses for step in steps])
    paths = ["1 | " + " ~ 9 | ".join(f"3*{len(step)}" for step in steps) for steps in responses]
    members = [{"path": path, "reward": reward} for path, reward in zip(paths, rewards, strict=True)]
    policy = {"logprob": (ratios - 1.0).tolist()}
    return dict(computed(recipe, ["loss", "draw.advantage"], members=members, policy=policy))


@EXAMPLES.by("two responses, three decode steps of one, two and one tokens")
def steps(example: Example) -> Found:
    given = example.values
    recipe = WITHOUT_KL.replace(advantage=recipes.CJ_GRPO.advantage)
    responses = [[given[f"d{step}{name}"] for step in (1, 2, 3)] for name in "ab"]
    result = response_numbers(recipe, given["R"].tolist(), *responses)
    return {"advantage": result["draw.advantage"], "loss": result["loss"]}


@EXAMPLES.by("responses that unmask unequal numbers of tokens in a step")
def unequal(example: Example) -> Found:
    one, other = example.values["la"], example.values["lb"]
    result = response_numbers(WITHOUT_KL, [-one[0], -other[0]], [np.log(one / one[0])], [np.log(other / other[0])])
    return {"mean_of_means": result["loss"]}


@EXAMPLES.by("log-probability at another state")
def other_state(example: Example) -> Found:
    given = example.values
    ratios = given["at_step"] - given["old_at_step"]
    return {"loss": response_numbers(WITHOUT_KL, [float(given["A"])], [ratios[:1], ratios[1:]])["loss"]}


@EXAMPLES.by("KL and inner iterations")
def inner_iterations(example: Example) -> Found:
    old, second, reference, advantages = (example.values[name] for name in ("old", "second", "ref", "A"))
    losses = given_advantages(recipes.CJ_GRPO)
    return {
        "loss_1": single_tokens(losses, old, old, advantages, reference_logprob=reference)["loss"],
        "loss_2": single_tokens(losses, old, second, advantages, reference_logprob=reference)["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
