"""Worked examples of the paper of dr_grpo, computed by the recipe."""

from __future__ import annotations

import pytest
from common_examples import CommonExamples, advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("dr_grpo")
GROUPS = "groups of five and of three"
COMMON = CommonExamples(EXAMPLES, recipes.DR_GRPO, but=[GROUPS])


@EXAMPLES.by(GROUPS)
def groups(example: Example) -> Found:
    one, other = advantages(recipes.DR_GRPO, example.values["R"], example.values["S"])
    grpo = recipes.GRPO.replace(advantage=GroupRelative(eps=1e-8))
    return {"advantage_a": one, "advantage_b": other, "grpo_a": advantages(grpo, example.values["R"])[0]}


@EXAMPLES.by("tokens divided by a constant of 10, tool tokens out")
def divided(example: Example) -> Found:
    return COMMON.tool_tokens(example, given_advantages(recipes.DR_GRPO, constant=10.0))


@EXAMPLES.by("a long wrong answer is not diluted")
def lengths(example: Example) -> Found:
    def each(aggregate: str, constant: float | None) -> list[float]:
        losses = given_advantages(recipes.DR_GRPO, aggregate=aggregate, constant=constant)
        counts, advantage_values = example.values["n"].astype(int), example.values["A"].tolist()
        return [
            float(computed(losses, ["loss"], members=answers([count], [reward]))["loss"][0])
            for count, reward in zip(counts, advantage_values, strict=True)
        ]

    return {"loss_each": each("constant", 10.0), "loss_each_grpo": each("sequence_mean", None)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
