"""Worked examples of the paper of brorl, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("brorl")
UNWEIGHTED = recipes.BRORL.replace(weight=None, old_logprob="behaviour")
LOSSES = given_advantages(recipes.BRORL).replace(weight=recipes.BRORL.weight, old_logprob="recomputed")


@EXAMPLES.by("a skewed group of 512 and one of 8")
def skewed(example: Example) -> Found:
    assert recipes.BRORL.rollout.final_group_size(16) == 512
    sizes, right = (example.values[name].astype(int) for name in ("n", "right"))
    groups = [np.arange(size) < solved for size, solved in zip(sizes, right, strict=True)]
    group_advantages = advantages(UNWEIGHTED, *(group.astype(float) for group in groups))
    return {"right": [each[0] for each in group_advantages], "wrong": [each[-1] for each in group_advantages]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage": advantages(UNWEIGHTED, [*example.values["R"], np.nan])[0]}


@EXAMPLES.by("a right answer that was cut off")
def cut_off(example: Example) -> Found:
    given = example.values
    members = [
        {**member, "steps": [{"truncated": bool(cut)}]}
        for member, cut in zip(answers([1] * 3, given["reward"].tolist()), given["cut_off"], strict=True)
    ]
    tokens = {"reference_logprob": [-1.0] * 3}
    result = computed(UNWEIGHTED, ["draw.score", "token.advantage"], members=members, columns={"token": tokens})
    return {"score": result["draw.score"], "advantage": result["token.advantage"]}


def test_groups_of_equal_scores_are_dropped() -> None:
    assert recipes.BRORL.admit.judged == "reward", "not the score with its penalty"
    scores, groups = np.array([0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0]), np.array([0, 0, 1, 1, 2, 2, 3], np.uint32)
    assert recipes.BRORL.admit(scores, groups).tolist() == [False, True, False, False]


@EXAMPLES.by("loss of the recipe, two optimizer steps")
def loss(example: Example) -> Found:
    rollout, old, second, ref, advantage_values = (
        example.values[name] for name in ("rollout", "old", "second", "ref", "A")
    )
    members = answers([1] * 3, advantage_values.tolist())
    tokens = {"recomputed_logprob": old, "reference_logprob": ref}
    weights = computed(
        LOSSES,
        ["token.weight"],
        members=[{**member, "logprobs": [each]} for member, each in zip(members, rollout.tolist(), strict=True)],
        columns={"token": tokens},
    )
    return {
        "weight": weights["token.weight"],
        "first_loss": single_tokens(LOSSES, rollout, old, advantage_values, **tokens)["loss"],
        "second_loss": single_tokens(LOSSES, rollout, second, advantage_values, **tokens)["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
