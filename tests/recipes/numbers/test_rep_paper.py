"""Worked examples of the paper of rep, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import KL, Policy, Reinforce
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("rep")
CODE = recipes.REP.replace(loss=Policy(clip=None, surrogate=Reinforce(), drift=KL(0.2, "k2")))
"""The recipe with the square of each token, as in the authors' code."""
LOSSES = given_advantages(CODE)
CommonExamples(EXAMPLES, recipes.REP, but=["one rollout of four has no score (convention)"], losses=LOSSES)


def asymmetric(coefficient: float) -> Recipe:
    """Return AsymRE of the authors' code."""
    drift = KL(coefficient, "k1", direction="forward")
    return given_advantages(CODE, drift=drift).replace(advantage=recipes.REP.advantage)


def responses(recipe: Recipe, rewards: Value, new: list[Value], old: list[Value] | None = None) -> dict[str, Any]:
    """Return loss and gradient of a group."""
    members = answers([len(each) for each in new], rewards.tolist())
    for member, logprobs in zip(members, old or new, strict=True):
        member["logprobs"] = logprobs.tolist()
    policy = {"logprob": np.concatenate(new).tolist()}
    return dict(computed(recipe, ["loss", "gradient.logprob"], members=members, policy=policy))


@EXAMPLES.by("advantages of groups of five and of three")
def groups(example: Example) -> Found:
    one, other = advantages(recipes.REP, example.values["r"], example.values["s"])
    return {"advantage_a": one, "advantage_b": other}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage": advantages(recipes.REP, [*example.values["r"], np.nan])[0]}


@EXAMPLES.by("OPMD by token and by response")
def opmd(example: Example) -> Found:
    given, beta = example.values, recipes.REP.loss.beta
    new, old = ([given[f"{kind}{name}"] for name in "ab"] for kind in "lo")
    code, paper_result = (responses(recipe, given["r"], new, old) for recipe in (CODE, recipes.REP))
    credit = given["r"] - given["r"].mean()
    constants = credit**2 / (2.0 * beta) + credit * [each.sum() for each in old]
    slopes = paper_result["gradient.logprob"]
    np.testing.assert_allclose(slopes[:3], slopes[0])
    return {
        "loss": code["loss"],
        "slope_of_the_tokens_of_a": code["gradient.logprob"][:3],
        "loss_of_the_paper_at_beta_2c": paper_result["loss"] - constants.mean(),
        "slope_of_the_paper_for_each_token_of_a": slopes[:1],
        "slope_of_the_paper_for_the_token_of_b": slopes[3:],
    }


@EXAMPLES.by("two optimizer steps of the paper: the square of a whole answer")
def answer_steps(example: Example) -> Found:
    given = example.values
    recipe = recipes.REP.replace(advantage=LOSSES.advantage)
    members = [{"path": "1 | 3 ~ 9 | 4", "reward": float(given["A"]), "logprobs": given["old"].tolist()}]
    slopes = {
        name: computed(recipe, ["gradient.logprob"], members=members, policy={"logprob": new.tolist()})
        for name, new in (("first", given["old"]), ("second", given["second"]))
    }
    for result in slopes.values():
        np.testing.assert_allclose(result["gradient.logprob"], result["gradient.logprob"][0])
    return {f"{name}_slope": result["gradient.logprob"][:1] for name, result in slopes.items()}


@EXAMPLES.by("a group of one is only regularised, by the answer")
def answer_alone(example: Example) -> Found:
    given = example.values
    result = responses(recipes.REP, given["r"], [given["logp"]], [given["old"]])
    return {"advantage": advantages(recipes.REP, given["r"])[0], "loss": result["loss"]}


@EXAMPLES.by("AsymRE: a shift of the baseline has the same gradient")
def shift(example: Example) -> Found:
    given, share = example.values, float(example.values["c"])
    logprobs = [given["la"], given["lb"]]
    shifted = given_advantages(CODE, drift=None).replace(advantage=GroupRelative(scale="none", shift=share))
    by_shift, by_kl = (responses(recipe, given["r"], logprobs) for recipe in (shifted, asymmetric(share)))
    np.testing.assert_allclose(by_shift["gradient.logprob"], by_kl["gradient.logprob"])
    return {
        "loss_by_shift": by_shift["loss"],
        "slope_of_a_token_of_a": by_kl["gradient.logprob"][:1],
        "slope_of_the_token_of_b": by_kl["gradient.logprob"][3:],
    }


@EXAMPLES.by("two optimizer steps: the square pulls from the second on")
def steps(example: Example) -> Found:
    old, second, advantage_values = (example.values[name] for name in ("old", "second", "A"))
    first, later = (single_tokens(LOSSES, old, new, advantage_values) for new in (old, second))
    asymre = asymmetric(float(example.values["c"])).replace(advantage=LOSSES.advantage)
    return {
        "first_loss": first["loss"],
        "second_loss": later["loss"],
        "first_slope": first["gradient.logprob"],
        "second_slope": later["gradient.logprob"],
        "slope_of_asymre_at_both": single_tokens(asymre, old, second, advantage_values)["gradient.logprob"],
    }


@EXAMPLES.by("a group of one is only regularised")
def alone(example: Example) -> Found:
    given = example.values
    result = responses(CODE, given["r"], [given["logp"]], [given["old"]])
    return {"advantage": advantages(recipes.REP, given["r"])[0], "loss_opmd": result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
