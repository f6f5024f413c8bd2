"""Worked examples of the paper of r_star2_agent, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, plain_reward
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small

from agentrl_core import recipes

EXAMPLES = PaperExamples("r_star2_agent")
ROC = recipes.RSTAR2.reward[1]
CommonExamples(EXAMPLES, recipes.RSTAR2.replace(weight=None))


def kept_counts(right: int, wrong: int) -> Value:
    """Return how many wrong and right rollouts keep their score."""
    members = [
        {"path": "1 | 3", "reward": reward, "success": bool(reward), "rewards": {"tool_penalty": 0.1 * place}}
        for place, reward in enumerate([1] * right + [0] * wrong)
    ]
    scores = computed(recipes.RSTAR2, ["draw.score"], members=members)["draw.score"]
    return np.array([np.sum(scores == 0), np.sum(scores == 1)])


@EXAMPLES.by("numbers for three groups of 32")
def numbers(example: Example) -> Found:
    del example
    return {"first": kept_counts(12, 20), "second": kept_counts(2, 30), "third": kept_counts(31, 1)}


def keeps_score(penalties: Value, right: Value, seed: int | None) -> Value:
    """Return which of a group of five, of which two stay, keep their score."""
    members = [
        {"path": "1 | 3", "reward": each, "success": bool(each), "rewards": {"tool_penalty": penalty}}
        for penalty, each in zip(penalties.tolist(), right.tolist(), strict=True)
    ]
    recipe = recipes.RSTAR2.replace(reward=(recipes.RSTAR2.reward[0], replace(ROC, count=2, at_least=0, seed=seed)))
    return np.isfinite(computed(recipe, ["draw.score"], members=members)["draw.score"])


@EXAMPLES.by("the cleanest are kept by the code")
def cleanest(example: Example) -> Found:
    return {"kept": keeps_score(example.values["p"], example.values["right"], None)}


def test_a_right_rollout_is_drawn_with_a_chance_inverse_to_its_penalty() -> None:
    example = EXAMPLES.example("one of three right rollouts is drawn")
    groups = 3000
    penalties = np.tile([*example.values["p"], 0.0, 0.0], groups)
    batch = small(
        [(group, [1]) for group in range(groups) for _ in range(5)],
        draw_score=np.tile([1.0, 1.0, 1.0, 0.0, 0.0], groups),
        draw_success=np.tile([1, 1, 1, 0, 0], groups),
        **{"draw_reward.tool_penalty": penalties},
    )
    kept = np.isfinite(column(replace(ROC, count=2, at_least=0)(batch), "score")).reshape(groups, 5)
    assert (kept.sum(axis=1) == 2).all()
    np.testing.assert_allclose(kept.mean(axis=0), [*example.expect["share"], 0.5, 0.5], atol=0.04)


@EXAMPLES.by("advantages after resampling")
def resampled(example: Example) -> Found:
    members = [
        {"path": "1 | 3", "reward": reward, "success": bool(reward), "rewards": {"tool_penalty": 0.0}}
        for reward in example.values["R"].tolist()
    ]
    recipe = recipes.RSTAR2.replace(reward=(recipes.RSTAR2.reward[0], replace(ROC, count=5)))
    return {"advantage": computed(recipe, ["draw.advantage"], members=members)["draw.advantage"]}


@EXAMPLES.by("resampling moves the mean")
def moved(example: Example) -> Found:
    del example
    wrong, right = kept_counts(2, 30)
    return {"after": right / (wrong + right)}


@EXAMPLES.by("equal rewards")
def equal(example: Example) -> Found:
    members = answers([1] * len(example.values["R"]), example.values["R"].tolist())
    recipe = plain_reward(recipes.RSTAR2)
    return {"kept": np.max(computed(recipe, ["draw.keep"], members=members)["draw.keep"])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
