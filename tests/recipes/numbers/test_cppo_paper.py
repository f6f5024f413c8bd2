"""Worked examples of the paper of cppo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from common_examples import CommonExamples, given_advantages, path_of, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.weight import SelectDraws

EXAMPLES = PaperExamples("cppo")
UNSCORED = "one rollout of four has no score (convention)"
COMMON = CommonExamples(EXAMPLES, recipes.CPPO, but=[UNSCORED])
PRUNING = recipes.CPPO.weight
LOSSES = given_advantages(recipes.CPPO)


@EXAMPLES.by("two groups, 0.625 pruned: by group and over the batch")
def pruned(example: Example) -> Found:
    groups = [example.values[name].tolist() for name in "RS"]
    members = [
        {**answer, "group": group}
        for group, rewards in zip("ab", groups, strict=True)
        for answer in answers([1] * len(rewards), rewards)
    ]
    names, results = ["draw.advantage", "draw.keep"], {}
    for kind, link in (
        ("paper", replace(PRUNING, fraction=1 - 0.625)),
        ("code", replace(PRUNING, fraction=1 - 0.625, group_by="batch")),
    ):
        numbers = computed(plain_reward(recipes.CPPO).replace(weight=link), names, members=members)
        results["advantage_a"], results["advantage_b"] = np.split(numbers["draw.advantage"], [5])
        results[f"keep_{kind}_a"], results[f"keep_{kind}_b"] = np.split(numbers["draw.keep"], [5])
    return results


@EXAMPLES.by("the loss over what stays, unequal lengths")
def what_stays(example: Example) -> Found:
    given = example.values
    masks = [given["mask_a"], given["mask_b"], np.ones(2)]
    members = [
        {"path": path_of(mask), "reward": reward} for mask, reward in zip(masks, given["A"].tolist(), strict=True)
    ]
    token_count = int(sum(mask.sum() for mask in masks))
    columns = {"token": {"reference_logprob": [-1.0] * token_count}}
    by_token = given_advantages(recipes.CPPO, aggregate="token_mean")
    paper, code = (
        computed(each.replace(weight=replace(PRUNING, fraction=0.7)), ["loss"], members=members, columns=columns)
        for each in (LOSSES, by_token)
    )
    return {"loss_of_paper": paper["loss"], "loss_of_first_code": code["loss"]}


@EXAMPLES.by("a threshold empties a group")
def threshold(example: Example) -> Found:
    members = [{**answer, "group": name} for name in "AB" for answer in answers([1] * 4, example.values[name].tolist())]
    keep = computed(LOSSES.replace(weight=SelectDraws(at_least=1.0)), ["draw.keep"], members=members)["draw.keep"]
    return {"keep_a": keep[:4], "keep_b": keep[4:]}


@EXAMPLES.by("questions for a step")
def allocation(example: Example) -> Found:
    """The collector collects groups / (1 - P) groups; the recipe keeps the same number of completions."""
    size, results = int(example.values["G"]), []
    for rate in example.values["P"].tolist():
        groups = round(float(example.values["B"]) / (1 - rate))
        members = [
            {**answer, "group": f"{group}"}
            for group in range(groups)
            for answer in answers([1] * size, [float(reward) for reward in range(size)])
        ]
        recipe = plain_reward(recipes.CPPO).replace(weight=replace(PRUNING, fraction=1 - rate))
        kept_counts = computed(recipe, ["draw.keep"], members=members)["draw.keep"].reshape(groups, size).sum(axis=1)
        results.append((groups, kept_counts[0], kept_counts.sum()))
    questions, of_each, completions = np.array(results).T
    return {"questions": questions, "kept_of_each": of_each, "completions_in_the_update": completions}


@EXAMPLES.by(UNSCORED)
def unscored(example: Example) -> Found:
    members = [*answers([1] * 3, example.values["R"].tolist()), {"path": "1 | 3"}]
    result = computed(plain_reward(recipes.CPPO), ["draw.advantage", "draw.keep"], members=members)
    assert not result["draw.advantage"][3]
    assert not result["draw.keep"][3]
    return {"advantage": [*result["draw.advantage"][:3], np.nan], "keep": result["draw.keep"][:3]}


@EXAMPLES.by("the second pass over the same completions clips")
def second_pass(example: Example) -> Found:
    assert recipes.CPPO.epochs == 2
    return COMMON.second_step(example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
