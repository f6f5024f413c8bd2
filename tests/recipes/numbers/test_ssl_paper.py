"""Worked examples of the paper of ssl, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.reward import CombineReward, OutcomeScore

EXAMPLES = PaperExamples("ssl")
NEAR, TIERS, GATE = recipes.SSL.chain("reward")
STRUCTURED = recipes.SSL.replace(reward=(OutcomeScore(), TIERS, GATE))
"""The recipe whose environment pays the quality."""


def added(alpha: float) -> Recipe:
    """Return the reward that adds the tier to that of a correct answer."""
    scaled = CombineReward(column="score", coefficient=alpha - 1.0)
    return recipes.SSL.replace(reward=(OutcomeScore(), TIERS, scaled, CombineReward(column="reward.correct")))


def rewarded(
    recipe: Recipe,
    qualities: Sequence[float],
    *,
    turns: int = 1,
    **components: Sequence[float],
) -> Mapping[str, Value]:
    """Return scores and advantages of a group whose members got these rewards."""
    members = [
        {
            "path": "1 " + " ~ 9 ".join(["| 3"] * turns),
            "reward": float(quality),
            "rewards": {name: float(values[place]) for name, values in components.items()},
        }
        for place, quality in enumerate(qualities)
    ]
    result = computed(recipe, ["draw.score", "draw.advantage"], members=members)
    return {name.removeprefix("draw."): values for name, values in result.items()}


@EXAMPLES.by("spatial tiers")
def spatial(example: Example) -> Found:
    given = example.values
    members = [
        {"path": "1 | 3", "rewards": {"valid": 1}, "facts": {"dx": float(dx), "dy": float(dy)}}
        for dx, dy in zip(given["dx"] / given["sx"], given["dy"] / given["sy"], strict=True)
    ]
    quality, score = (
        computed(recipe, ["draw.score"], members=members)["draw.score"]
        for recipe in (recipes.SSL.replace(reward=NEAR), recipes.SSL)
    )
    return {"quality": quality, "tier": score * 4, "S": score}


@EXAMPLES.by("structured tiers at their borders")
def structured(example: Example) -> Found:
    given = example.values
    shares = given["matched"] / given["cells"]
    count = len(shares)
    quarter = rewarded(STRUCTURED, [float(given["quarter"])], valid=[1.0])["score"]
    return {
        "share": rewarded(plain_reward(recipes.SSL), shares, valid=[1.0] * count)["score"],
        "tier": rewarded(STRUCTURED, shares, valid=[1.0] * count)["score"] * 4,
        "tier_at_quarter": quarter * 4,
    }


@EXAMPLES.by("two forms of the reward in a group")
def forms(example: Example) -> Found:
    given = example.values
    one = rewarded(added(float(given["alpha"])), given["S"], correct=given["C"])
    gated = rewarded(STRUCTURED, given["S"], valid=given["valid"])
    invalid = rewarded(STRUCTURED, np.ones(4), valid=given["valid"])["score"]
    np.testing.assert_array_equal(invalid, given["valid"])
    return {
        "reward": one["score"],
        "advantage": one["advantage"],
        "gated_reward": gated["score"],
        "gated_advantage": gated["advantage"],
        "binary_advantage": advantages(plain_reward(recipes.SSL), given["C"])[0],
    }


@EXAMPLES.by("a long task")
def long_task(example: Example) -> Found:
    given = example.values
    return {"reward": rewarded(added(float(given["alpha"])), given["x"], turns=3, correct=given["C"])["score"]}


@EXAMPLES.by("one trajectory")
def alone(example: Example) -> Found:
    return {"deviation": advantages(plain_reward(recipes.SSL), example.values["R"])[0]}


@EXAMPLES.by("a trajectory without a quality (convention)")
def unknown(example: Example) -> Found:
    return {"advantage": advantages(plain_reward(recipes.SSL), [*example.values["R"].tolist(), np.nan])[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
