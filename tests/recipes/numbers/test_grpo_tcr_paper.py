"""Worked examples of the paper of grpo_tcr, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.reward import OutcomeScore

EXAMPLES = PaperExamples("grpo_tcr")
COMMON = CommonExamples(EXAMPLES, recipes.GRPO_TCR, but={"a group of one"})
EXAMPLES.by("two rollouts with tool tokens")(COMMON.tool_tokens)
EXAMPLES.by("the second of four optimizer steps")(COMMON.second_step)
LOSSES = given_advantages(recipes.GRPO_TCR)
OUTCOME, BONUS, PENALTY = recipes.GRPO_TCR.chain("reward")
OF_THE_CODE = recipes.GRPO_TCR.replace(reward=(OUTCOME, replace(BONUS, only="failure"), PENALTY))


def scores(recipe: Recipe, right: Sequence[float], calls: Sequence[float]) -> Value:
    members = [
        {**member, "success": solved > 0, "facts": {"tool_calls": float(count)}}
        for member, solved, count in zip(answers([1] * len(right), [0.0] * len(right)), right, calls, strict=True)
    ]
    return computed(recipe, ["draw.score"], members=members)["draw.score"]


@EXAMPLES.by("scores by tool calls")
def calls(example: Example) -> Found:
    return {"score": scores(recipes.GRPO_TCR, example.values["right"].tolist(), example.values["n"].tolist())}


@EXAMPLES.by("scores by turns")
def turns(example: Example) -> Found:
    """An unknown number of turns is 0 in the code, so one call less than none."""
    calls_of = (example.values["turns"] - 2) / 2
    return {"score": scores(OF_THE_CODE, example.values["right"].tolist(), calls_of.tolist())}


@EXAMPLES.by("overlong penalty")
def overlong(example: Example) -> Found:
    recipe = recipes.GRPO_TCR.replace(reward=(OutcomeScore(), PENALTY))
    members = answers(example.values["L"].astype(int).tolist(), example.values["s"].tolist())
    return {"reward": computed(recipe, ["draw.score"], members=members)["draw.score"]}


@EXAMPLES.by("tokens of another policy")
def off_policy(example: Example) -> Found:
    given = [example.values[name] for name in ("old", "new", "A")]
    alone = [single_tokens(LOSSES, *(each[[at]] for each in given))["loss"] for at in range(len(given[0]))]
    free = single_tokens(given_advantages(recipes.GRPO_TCR, clip=None), *given)["gradient.logprob"]
    return {
        "ratio": -len(free) * free / given[2],
        "objective": np.concatenate(alone),
        "loss": single_tokens(LOSSES, *given)["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
