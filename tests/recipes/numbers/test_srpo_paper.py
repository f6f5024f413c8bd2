"""Worked examples of the paper of srpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import Forest, recipes
from agentrl_core.recipes.srpo import SuccessDistance

EXAMPLES = PaperExamples("srpo")
COMMON = CommonExamples(EXAMPLES, recipes.SRPO, but={"a group of one"})
EXAMPLES.by("the second of sixteen optimizer steps")(COMMON.second_step)
LOSSES = given_advantages(recipes.SRPO)
REWARD = recipes.SRPO.reward
assert isinstance(REWARD, SuccessDistance)


def attempts(places: Sequence[Sequence[float]], success: bool, group: str = "task") -> list[dict[str, Any]]:
    """Return one-token rollouts that ended at these places."""
    return [
        {
            "group": group,
            "path": "1 | 3",
            "success": success,
            "facts": {f"embedding.{axis}": float(each) for axis, each in enumerate(place)},
        }
        for place in places
    ]


def scores(successes: Sequence[Sequence[float]], failures: Sequence[Sequence[float]], **options: Any) -> Value:
    """Return scores of the failures. A place of zeros is missing, and only distances count, so all are moved by 10."""
    recipe = recipes.SRPO.replace(reward=replace(REWARD, **options))
    members = attempts(np.add(successes, 10.0).tolist(), True) + attempts(np.add(failures, 10.0).tolist(), False)
    return computed(recipe, ["draw.score"], members=members)["draw.score"][len(successes) :]


def centres(successes: Sequence[Sequence[float]], step: float) -> Value:
    """Return places of a grid that are centres of successes: failures there score most."""
    width, height = np.max(successes, axis=0)
    grid = [[x, y] for x in np.arange(0.0, width + step, step) for y in np.arange(0.0, height + step, step)]
    grid_scores = scores(successes, grid)
    return np.array(grid)[grid_scores > grid_scores.max() - 1e-9]


@EXAMPLES.by("centres and distances")
def distances(example: Example) -> Found:
    successes, failures = example.values["success"].tolist(), example.values["fail"].tolist()
    first, second = centres(successes, 0.2)
    failure_scores = np.clip(scores(successes, failures, at_most=1.0), 1e-12, 1.0 - 1e-12)
    scaled = 0.5 - np.log(failure_scores / (1.0 - failure_scores)) / REWARD.slope
    return {"centre_1": first, "centre_2": second, "scaled": scaled}


@EXAMPLES.by("rewards of failures")
def rewards(example: Example) -> Found:
    return {"reward": scores([[0.0]], [[1.0 + each] for each in example.values["u"]])}


@EXAMPLES.by("equal distances, no success, zero embedding")
def edges(example: Example) -> Found:
    del example
    zero = [*attempts([[0.0]], True), *attempts([[1.0]], True), *attempts([[2.0]], False)]
    return {
        "equal_distances": scores([[0.0]], [[1.0], [-1.0]])[0],
        "no_success": computed(recipes.SRPO, ["draw.score"], members=attempts([[1.0]], False))["draw.score"],
        "zero_embedding": computed(recipes.SRPO, ["draw.score"], members=zero)["draw.score"][0],
    }


@EXAMPLES.by("no cluster: the mean of the successes")
def mean(example: Example) -> Found:
    [centre] = centres([example.values["a"].tolist(), example.values["b"].tolist()], 0.5)
    return {"centre": centre}


@EXAMPLES.by("which prompts stay")
def stay(example: Example) -> Found:
    members = [
        each for name in "abcd" for solved in example.values[name] for each in attempts([[1.0]], bool(solved), name)
    ]
    return {"kept": computed(recipes.SRPO, ["draw.keep"], members=members)["draw.keep"][::8]}


@EXAMPLES.by("two rollouts of two and one chunks")
def chunks(example: Example) -> Found:
    """A chunk has 8 actions of 7 tokens; those after the end are not trained."""
    one, other = answers([56, 56], example.values["A"].tolist())
    one["path"] = "1 | 3*56 ~ 9 | 3*56"
    other["trainable"] = [1] * 21 + [0] * 35
    result = computed(LOSSES, ["loss", "gradient.logprob"], members=[one, other])
    weights = -result["gradient.logprob"] / np.repeat(example.values["A"], [112, 56])
    return {
        "tokens": [np.sum(weights[:112] > 0), np.sum(weights[112:] > 0)],
        "loss": result["loss"],
        "token_weight": weights[0],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_the_successes_are_those_of_all_groups_of_a_task() -> None:
    forest = Forest(facts={"trajectory": {"embedding.0": "number"}})
    for group, solved in enumerate((True, False)):
        forest.add_group(group, "task")
        for member in range(2):
            branch = forest.start(group, member)
            forest.append(branch, [1], kind="prompt")
            forest.append(branch, [3], kind="action", logprobs=[-1.0])
            forest.step(branch)
            forest.finish(branch, success=solved, reward=0.0, facts={"embedding.0": 1.0 + group + member})
    batch = forest.freeze()
    failure = 0.6 / (1.0 + np.exp([-5.0, 5.0]))
    np.testing.assert_allclose(column(REWARD(batch), "score"), [1.0, 1.0, *failure], rtol=1e-6)
    alone = replace(REWARD, group_by="group_id")
    np.testing.assert_allclose(column(alone(batch), "score"), [1.0, 1.0, 0.0, 0.0])
