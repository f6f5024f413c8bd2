"""Worked examples of the paper of urpo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes

EXAMPLES = PaperExamples("urpo")
REFEREE = recipes.URPO.rollout


@EXAMPLES.by("a referee orders four candidates, with a tie")
def four(example: Example) -> Found:
    ranks = [4.0, 3.0, 2.0, 1.0]
    reward, right = REFEREE.judged(" ".join(map(str, example.values["score"])), ranks)
    return {
        "concordant": 6 * right,
        "reward": reward,
        "reward_without_scores": REFEREE.judged("none", ranks)[0],
    }


@EXAMPLES.by("a pair")
def pair(example: Example) -> Found:
    texts = [" and ".join(map(str, example.values[name])) for name in ("right", "wrong", "tie")]
    return {"reward": np.array([REFEREE.judged(text, [2.0, 1.0])[0] for text in texts])}


@EXAMPLES.by("three kinds in one batch, groups of unequal size")
def kinds(example: Example) -> Found:
    names = ("verifiable", "preference", "open")
    group_advantages = advantages(recipes.URPO, *(example.values[name] for name in names), facts={"ordered": -1.0})
    return {f"{name}_n_minus_1": each for name, each in zip(names, group_advantages, strict=True)}


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    return {"centred": advantages(recipes.URPO, example.values["r"], facts={"ordered": -1.0})[0]}


@EXAMPLES.by("the referee gave no score for one answer of four (convention)")
def unscored(example: Example) -> Found:
    rewards = [*example.values["open"], np.nan]
    return {"advantage_n_minus_1": advantages(recipes.URPO, rewards, facts={"ordered": -1.0})[0]}


@EXAMPLES.by("the referee of the next iteration is the new policy")
def next_iteration(example: Example) -> Found:
    reward_groups = [example.values[name] for name in ("first", "second")]
    group_advantages = advantages(recipes.URPO, *reward_groups, facts={"ordered": -1.0})
    return {"iteration_1": group_advantages[0], "iteration_2": group_advantages[1]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
