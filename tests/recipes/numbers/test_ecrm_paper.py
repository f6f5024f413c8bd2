"""Worked examples of the paper of ecrm, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("ecrm")


def credit(*groups: Sequence[float]) -> tuple[list[Value], list[Value]]:
    """Return transformed and centred scores of groups; a rollout whose reward is `nan` has none."""
    members = [
        {**member, "group": f"{place}"}
        for place, rewards in enumerate(groups)
        for member in answers([1] * len(rewards), rewards)
    ]
    for member in members:
        if np.isnan(member["reward"]):
            del member["reward"]
    result = computed(recipes.ECRM, ["draw.score", "draw.advantage"], members=members)
    bounds = np.cumsum([len(rewards) for rewards in groups])[:-1]
    scores, advantages = (np.split(result[f"draw.{name}"], bounds) for name in ("score", "advantage"))
    return scores, advantages


@EXAMPLES.by("a group of eight with two conventions of the quantile")
def eight(example: Example) -> Found:
    """The recipe has the interpolated quantile."""
    (scores,), (centred,) = credit(example.values["R"].tolist())
    assert scores.mean() == pytest.approx(example.expect["means"][2])
    return {"transformed": scores, "centred": centred}


@EXAMPLES.by("groups of five and of four")
def uneven(example: Example) -> Found:
    (one, other), _ = credit(example.values["a"].tolist(), example.values["b"].tolist())
    return {"transformed_a": one, "transformed_b": other}


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    (scores,), _ = credit(np.ravel(example.values["R"]).tolist())
    return {"transformed": scores}


@EXAMPLES.by("running quantile of the iteration before")
def of_the_group(example: Example) -> Found:
    """The recipe has the quantile of the current group."""
    (scores,), (centred,) = credit(example.values["R"].tolist())
    return {"transformed_group": scores, "centred_group": centred}


@EXAMPLES.by("a return is missing (convention)")
def unscored(example: Example) -> Found:
    (scores,), _ = credit([*example.values["R"].tolist(), float("nan")])
    return {"transformed": scores}


@EXAMPLES.by("policy gradient of rollouts that another policy sampled")
def sampled(example: Example) -> Found:
    given = example.values
    sizes = given["n"].astype(int)
    members = [
        {"path": "1 " + " ~ 9 ".join(["| 3"] * size), "reward": float(reward), "logprobs": [-1.0] * size}
        for size, reward in zip(sizes.tolist(), given["A"].tolist(), strict=True)
    ]
    result = computed(
        given_advantages(recipes.ECRM),
        ["loss", "gradient.logprob"],
        members=members,
        policy={"logprob": np.repeat(given["new"], sizes).tolist()},
    )
    return {"loss": result["loss"], "slope": result["gradient.logprob"][np.cumsum(sizes) - 1]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
