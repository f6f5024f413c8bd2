"""Worked examples of the paper of kl_cov, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, live_groups, path_of, single_tokens, weighted_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.loss.mask import score_of
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("kl_cov")
LOSSES = given_advantages(recipes.KL_COV)
PENALTY = recipes.KL_COV.loss.drift


def covariance(logprobs: Value, advantage_values: Value) -> Value:
    return score_of(weighted_tokens(logprobs, advantage_values), PENALTY.only.score).numpy()


def choosing(fraction: float) -> Recipe:
    """Return the recipe's loss with another share of chosen tokens."""
    return given_advantages(recipes.KL_COV, drift=replace(PENALTY, only=replace(PENALTY.only, fraction=fraction)))


@EXAMPLES.by("five tokens, one chosen, tool tokens out")
def chosen(example: Example) -> Found:
    old, new, advantage_values = (example.values[name] for name in ("old", "logp", "A"))
    members = [
        {"path": path_of(mask), "reward": float(reward), "logprobs": logprobs.tolist()}
        for mask, reward, logprobs in zip(
            ([1, 1], [1, 0, 1, 1]), advantage_values[[0, -1]], np.split(old, [2]), strict=True
        )
    ]
    result = computed(LOSSES, ["loss"], members=members, policy={"logprob": new.tolist()})
    return {
        "covariance": covariance(new, advantage_values),
        "chosen": PENALTY.only.chosen(weighted_tokens(new, advantage_values)).numpy(),
        "loss": result["loss"],
    }


@EXAMPLES.by("a negative token of low probability is chosen too")
def both_signs(example: Example) -> Found:
    new, advantage_values = example.values["logp"], example.values["A"]
    only = replace(PENALTY.only, fraction=float(example.values["k"]))
    return {
        "covariance": covariance(new, advantage_values),
        "two_largest": only.chosen(weighted_tokens(new, advantage_values)).numpy(),
    }


@EXAMPLES.by("no clip: a ratio of two keeps its gradient")
def no_clip(example: Example) -> Found:
    old, new, advantage_values = (example.values[name] for name in ("old", "logp", "A"))
    result = single_tokens(choosing(0.67), old, new, advantage_values)  # the two that the example chooses
    return {"loss": result["loss"], "slope_of_token_loss_in_logp": result["gradient.logprob"] * len(advantage_values)}


@EXAMPLES.by("the first optimizer step has no penalty, the second has")
def steps(example: Example) -> Found:
    old, second, advantage_values = (example.values[name] for name in ("old", "second", "A"))
    return {
        "covariance_1": covariance(old, advantage_values),
        "loss_1": single_tokens(LOSSES, old, old, advantage_values)["loss"],
        "covariance_2": covariance(second, advantage_values),
        "chosen_2": PENALTY.only.chosen(weighted_tokens(second, advantage_values)).numpy(),
        "loss_2": single_tokens(LOSSES, old, second, advantage_values)["loss"],
    }


@EXAMPLES.by("one rollout of four has no score, one failed (convention)")
def unscored(example: Example) -> Found:
    advantage_values, new = example.values["A"], example.values["logp"]
    groups = np.split(new, [2, 3])
    members = [
        {"path": path_of(np.ones(len(each))), "reward": reward, "logprobs": each.tolist()}
        for each, reward in zip(groups, (1, 0, 0), strict=True)
    ]
    members.append({"path": "1 | 3 3"})
    result = computed(recipes.KL_COV.replace(minibatches=1), ["loss", "token.advantage"], members=members)
    by_rollout = advantages(recipes.KL_COV, [1.0, 0.0, 0.0, np.nan])[0]
    np.testing.assert_allclose(result["token.advantage"][:5], np.repeat(by_rollout[:3], [2, 1, 2]))
    return {
        "covariance": covariance(new, advantage_values),
        "loss_at_ratio_1": result["loss"],
        "advantage_of_tokens": np.repeat(by_rollout, [2, 1, 2, 2]),
    }


@EXAMPLES.by("groups that are all right or all wrong leave")
def filtered(example: Example) -> Found:
    return live_groups(recipes.KL_COV, example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
