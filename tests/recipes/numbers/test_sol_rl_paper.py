"""Worked examples of the paper of sol_rl, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("sol_rl")
EXTREMES, RELATIVE = recipes.SOL_RL.chain("advantage")


def sharing(share: float) -> Recipe:
    """Return the recipe that keeps a share of each group."""
    return recipes.SOL_RL.replace(advantage=(replace(EXTREMES, share=share), RELATIVE))


def credited(recipe: Recipe, *groups: Value) -> tuple[Value, list[Value]]:
    """Return which rollouts are kept, and the advantages of each group."""
    members = [
        {**member, "group": f"{place}"}
        for place, rewards in enumerate(groups)
        for member in answers([1] * len(rewards), rewards.tolist())
    ]
    columns = {"token": {"recomputed_logprob": [-1.0] * len(members)}}
    result = computed(recipe, ["draw.keep", "draw.advantage"], members=members, columns=columns)
    return result["draw.keep"], np.split(result["draw.advantage"], np.cumsum([len(each) for each in groups])[:-1])


@EXAMPLES.by("eight candidates, five of them kept")
def selection(example: Example) -> Found:
    draft = example.values["draft"]
    keep, (advantage,) = credited(sharing(float(example.values["K"]) / len(draft)), draft)
    order = [place for place in np.argsort(-draft) if keep[place]]
    best = [place for place in order if draft[place] > np.median(draft)]
    worst = [place for place in order[::-1] if draft[place] < np.median(draft)]
    kept_rewards = draft[best + worst]
    deviation = (kept_rewards - kept_rewards.mean()) / advantage[best + worst]
    np.testing.assert_allclose(deviation, deviation[0])
    return {
        "best": np.array(best, float),
        "worst": np.array(worst, float),
        "kept": kept_rewards,
        "deviation": deviation[0] - 1e-4,
    }


def test_a_quarter_of_a_group_is_kept() -> None:
    keep, _ = credited(recipes.SOL_RL, np.arange(96.0))
    assert np.flatnonzero(keep).tolist() == [*range(12), *range(84, 96)]


@EXAMPLES.by("advantages from the rewards of the exact images, two prompts")
def exact(example: Example) -> Found:
    _, (first, second) = credited(sharing(1.0), example.values["first"], example.values["second"])
    return {"first": first, "second": second}


@EXAMPLES.by("a single sample weighs half, towards and away alike")
def single(example: Example) -> Found:
    return {"advantage": credited(recipes.SOL_RL, example.values["R"])[1][0]}


def test_advantages_are_limited_as_in_the_code() -> None:
    rewards = np.array([1.0] + [0.0] * 63)
    _, (advantage,) = credited(sharing(1.0), rewards)
    np.testing.assert_allclose(advantage.max(), 5.0)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
