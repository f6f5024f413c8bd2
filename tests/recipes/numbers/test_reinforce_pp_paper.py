"""Worked examples of the paper of reinforce_pp, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from common_examples import CommonExamples, advantages, path_of
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("reinforce_pp")
CommonExamples(EXAMPLES, recipes.REINFORCE_PLUS_PLUS)


@EXAMPLES.by("returns and global normalisation of two responses")
def returns(example: Example) -> Found:
    given = example.values
    divergence = np.concatenate([given["kl_a"], given["kl_b"]])
    iteration = {
        "members": answers([2, 3], [float(given["score_a"]), float(given["score_b"])]),
        "columns": {"token": {"reference_logprob": (-1.0 - divergence).tolist()}},
    }
    first, whitening = recipes.REINFORCE_PLUS_PLUS.chain("advantage")
    priced = recipes.REINFORCE_PLUS_PLUS.replace(
        advantage=(replace(first, kl_coefficient=float(given["beta"])), whitening)
    )
    plain = priced.replace(advantage=priced.chain("advantage")[0])
    return {
        "return": computed(plain, ["token.advantage"], **iteration)["token.advantage"],
        "advantage": computed(priced, ["token.advantage"], **iteration)["token.advantage"],
    }


@EXAMPLES.by("returns that hardly differ")
def small(example: Example) -> Found:
    return {"advantage": np.concatenate(advantages(recipes.REINFORCE_PLUS_PLUS, *example.values["G"]))}


def test_the_kl_coefficient_is_that_of_the_authors_script() -> None:
    assert recipes.REINFORCE_PLUS_PLUS.chain("advantage")[0].kl_coefficient == 1e-4


@EXAMPLES.by("the baseline variant")
def baseline(example: Example) -> Found:
    group_advantages = advantages(recipes.REINFORCE_PLUS_PLUS_BASELINE, example.values["R"], example.values["S"])
    return {"advantage": np.concatenate(group_advantages)}


@EXAMPLES.by("one response has no score (convention)")
def unscored(example: Example) -> Found:
    group_advantages = advantages(recipes.REINFORCE_PLUS_PLUS, [*example.values["G"], np.nan])[0]
    return {"advantage_of_the_scored": group_advantages[:-1]}


@EXAMPLES.by("a tool result in the middle")
def tool(example: Example) -> Found:
    recipe = recipes.REINFORCE_PLUS_PLUS.replace(advantage=recipes.REINFORCE_PLUS_PLUS.chain("advantage")[0])
    result = computed(
        recipe,
        ["token.advantage"],
        members=[{"path": path_of(example.values["mask"]), "reward": float(example.values["score"])}],
        columns={"token": {"reference_logprob": [-1.0] * 2}},
    )
    return {"return": result["token.advantage"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
