"""Worked examples of the paper of d3s, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("d3s")
GIVEN = given_advantages(recipes.D3S)


def kept_draws(recipe: Recipe, count: int, *groups: list[float]) -> Value:
    """Return the draws of groups that remain under a limit; a draw without a score has reward `nan`."""
    chosen = recipe.replace(weight=replace(recipes.D3S.at(0).weight, count=count))
    members = [
        {"group": str(place), "path": "1 | 3", **({} if np.isnan(reward) else {"reward": reward})}
        for place, group in enumerate(groups)
        for reward in group
    ]
    return computed(chosen, ["draw.keep"], members=members)["draw.keep"] > 0


@EXAMPLES.by("four of seven rollouts of two groups")
def four_of_seven(example: Example) -> Found:
    groups = [example.values["R"].tolist(), example.values["S"].tolist()]
    group_advantages = advantages(recipes.D3S, *groups)
    stays = kept_draws(recipes.D3S, 4, *groups)
    order = np.argsort(np.concatenate(group_advantages), kind="stable")
    splits = [[1, 0, 0, 0, 1, 1, 1], [1, 1, 0, 0, 0, 1, 1], [1, 1, 1, 0, 0, 0, 1], [1, 1, 1, 1, 0, 0, 0]]
    splits.append([0, 0, 0, 1, 1, 1, 1])
    sorted_found = np.concatenate(group_advantages)[order]
    return {
        "advantage_first_group": group_advantages[0],
        "advantage_second_group": group_advantages[1],
        "best_split": [
            np.allclose(np.sort(np.concatenate(group_advantages)[stays]), sorted_found[np.array(split) > 0])
            for split in splits
        ],
    }


@EXAMPLES.by("rollouts of advantage zero go first")
def zeros(example: Example) -> Found:
    stays = kept_draws(GIVEN, 2, *([advantage] for advantage in example.values["A"].tolist()))
    return {"the_two_are_kept": float(stays.tolist() == [True, True, False, False, False])}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    scores = [*example.values["R"].tolist(), np.nan]
    stays = kept_draws(recipes.D3S, 2, scores)
    assert stays[0]
    assert (stays.sum(), stays[3]) == (2, False)
    return {"advantage": advantages(recipes.D3S, scores)[0]}


@EXAMPLES.by("40 % of the tokens of two rollouts of three and two tokens")
def tokens(example: Example) -> Found:
    given = example.values
    mask = replace(recipes.D3S.at(0).loss.mask, fraction=0.4)

    def compute(**options: Any) -> Found:
        return dict(
            computed(
                given_advantages(recipes.D3S, mask=mask, **options),
                ["loss", "gradient.logprob"],
                members=answers([3, 2], given["A"][[0, 3]].tolist()),
                policy={"logprob": (np.log(given["u"]) - 1.0).tolist(), "entropy": given["H"].tolist()},
            )
        )

    return {"loss_over_kept_tokens": compute()["loss"], "kept": compute(clip=None)["gradient.logprob"] != 0}


@EXAMPLES.by("the schedule")
def schedule(example: Example) -> Found:
    """A batch of 128 rollouts; the share of tokens ends at 1 in the example."""
    iterations = [int(400 * share) for share in example.values["p"].tolist()]
    now = [recipes.D3S.at(iteration) for iteration in iterations]
    tokens = replace(recipes.D3S.loss.mask.fraction, end=1.0)
    return {
        "rollouts": [128 * each.weight.fraction for each in now],
        "percent_of_tokens": [100 * tokens.at(iteration) for iteration in iterations],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
