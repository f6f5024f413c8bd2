"""Worked examples of the paper of ui_s1, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.ui_s1 import MatchedReturns

EXAMPLES = PaperExamples("ui_s1")
LOSSES = given_advantages(recipes.UI_S1, kl=None)
COMMON = CommonExamples(EXAMPLES, recipes.UI_S1.replace(advantage=recipes.UI_S1.advantage[0]), losses=LOSSES)
EPISODE, STEP = recipes.UI_S1.chain("advantage")


def rolled(*rollouts: tuple[list[float], list[int]], recipe: Recipe = recipes.UI_S1) -> list[dict[str, Value]]:
    """Return returns and advantages of rollouts with these step rewards, each step matching the expert or not."""
    members = [
        {
            "path": "1 " + " ~ 9 ".join("| 3" for _ in rewards),
            "reward": sum(rewards),
            "steps": [
                {"reward": reward, "facts": {"matched": same}} for reward, same in zip(rewards, matched, strict=True)
            ],
        }
        for rewards, matched in rollouts
    ]
    count = sum(len(rewards) for rewards, _ in rollouts)
    columns = {"token": {"reference_logprob": [-1.0] * count}}
    result = computed(recipe, ["step.matched_return", "step.advantage"], members=members, columns=columns)
    bounds = np.cumsum([len(rewards) for rewards, _ in rollouts])[:-1]
    parts = {name.removeprefix("step."): np.split(values, bounds) for name, values in result.items()}
    return [{name: values[place] for name, values in parts.items()} for place in range(len(rollouts))]


A, B = ([1.0, 1.0, 1.0], [1, 1, 1]), ([1.0, 0.5, 1.0], [1, 0, 1])
C = ([1.0, 0.1], [1, 0])


CODE = recipes.UI_S1.replace(reward=(recipes.UI_S1.chain("reward")[0], MatchedReturns(with_mismatch=False)))


@EXAMPLES.by("the same by equation 9")
def through(example: Example) -> Found:
    del example
    return {"return_b": rolled(A, B)[1]["matched_return"]}


@EXAMPLES.by("episode advantages and the sum")
def episodes(example: Example) -> Found:
    rollouts = [([total], [1]) for total in example.values["total"].tolist()]  # one step each: R_1 is the total
    alone = rolled(*rollouts, recipe=recipes.UI_S1.replace(advantage=EPISODE))
    both = rolled(*rollouts)
    return {
        "episode": np.concatenate([each["advantage"] for each in alone]),
        "sum_at_step_1": np.concatenate([each["advantage"] for each in both]),
    }


@EXAMPLES.by("returns of two rollouts by the code")
def two(example: Example) -> Found:
    del example
    one, other = rolled(A, B, recipe=CODE)
    return {"return_a": one["matched_return"], "return_b": other["matched_return"]}


@EXAMPLES.by("a rollout that ends at its miss")
def miss(example: Example) -> Found:
    del example
    return {"return_c": rolled(C, recipe=CODE)[0]["matched_return"]}


@EXAMPLES.by("step advantages")
def steps(example: Example) -> Found:
    del example
    result = rolled(A, B, C, recipe=CODE.replace(advantage=replace(STEP, add=False)))
    a, b, c = (each["advantage"] for each in result)
    return {"step_1": [a[0], b[0], c[0]], "step_2": [a[1], b[1], c[1]], "step_3": [a[2], b[2]]}


@EXAMPLES.by("episode level over step rows")
def rows(example: Example) -> Found:
    del example
    code = replace(EPISODE, column="reward", voter="row")
    result = rolled(A, B, C, recipe=recipes.UI_S1.replace(advantage=code))
    return {"episode": np.concatenate([each["advantage"] for each in result])}


@EXAMPLES.by("a step that one rollout reached")
def alone(example: Example) -> Found:
    del example
    code = replace(EPISODE, column="reward", voter="row")
    return {"advantage": rolled(([1.0], [1]), recipe=recipes.UI_S1.replace(advantage=code))[0]["advantage"]}


@EXAMPLES.by("diversity")
def diversity(example: Example) -> Found:
    band = recipes.UI_S1.weight.band
    return {"enough": np.max(band.holds(example.values["A"], np.zeros(len(example.values["A"]), np.uint32)))}


@EXAMPLES.by("patched text has no loss")
def patched(example: Example) -> Found:
    return COMMON.tool_tokens(example)


@EXAMPLES.by("clip at eps = 0.2 (number not seen)")
def clipped(example: Example) -> Found:
    return COMMON.off_policy(example)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
