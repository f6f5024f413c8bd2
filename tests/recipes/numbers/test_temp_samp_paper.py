"""Worked examples of the paper of temp_samp, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("temp_samp")
TEMP_SAMP = recipes.TEMP_SAMP
LOSSES = given_advantages(TEMP_SAMP)


def shaped(rewards: Sequence[float], **options: Any) -> dict[str, Value]:
    """Return scores and advantages of a group, the last member of which is the given solution."""
    members = [*answers([1] * (len(rewards) - 1), rewards[:-1])]
    members.append({"path": "1 | 3", "reward": rewards[-1], "unsampled": True})
    result = computed(
        TEMP_SAMP.replace(advantage=replace(TEMP_SAMP.advantage, **options)),
        ["draw.score", "draw.advantage"],
        members=members,
        columns={"token": {"recomputed_logprob": [-1.0] * len(members)}},
    )
    return dict(result)


def plain(rewards: Sequence[float]) -> Value:
    """Return advantages without shaping."""
    return advantages(plain_reward(TEMP_SAMP).replace(old_logprob="behaviour"), rewards)[0]


@EXAMPLES.by("shaping then joint normalisation")
def joint(example: Example) -> Found:
    rewards = example.values["r"].tolist()
    result = shaped(rewards)
    return {
        "shaped": result["draw.score"],
        "advantage_n_minus_1": result["draw.advantage"],
        "advantage_n": shaped(rewards, ddof=0)["draw.advantage"],
        "advantage_without_shaping_n_minus_1": plain(rewards),
    }


@EXAMPLES.by("anchoring when all samples agree")
def agreement(example: Example) -> Found:
    return {"joint_n_minus_1": plain([*example.values["r"].tolist(), float(example.values["truth"])])}


@EXAMPLES.by("one sample beside the truth, and the truth alone")
def pair(example: Example) -> Found:
    rewards = example.values["r"].tolist()
    result = shaped(rewards)
    return {
        "shaped": result["draw.score"],
        "advantage_n_minus_1": result["draw.advantage"],
        "without_shaping_n_minus_1": plain(rewards),
        "centred_alone": shaped(rewards[-1:])["draw.advantage"],
    }


def objective(lengths: Sequence[int], ratios: Value, advantage_values: Value) -> Value:
    """Return the objective of solutions of several tokens, which have equal shares of the solution's log-ratio."""
    moved = np.repeat(ratios / lengths, lengths) - 1.0
    members = answers(lengths, advantage_values.tolist())
    return -computed(LOSSES, ["loss"], members=members, policy={"logprob": moved.tolist()})["loss"]


@EXAMPLES.by("first and second step on one batch")
def steps(example: Example) -> Found:
    assert TEMP_SAMP.epochs * TEMP_SAMP.minibatches == 1
    advantage_values, ratios, lengths = example.values["A"], example.values["logr"], [1, 3, 2]
    return {
        "objective_first_step": objective(lengths, np.zeros(3), advantage_values),
        "terms": np.concatenate(
            [
                objective(lengths[at : at + 1], ratios[[at]], advantage_values[[at]])
                for at in range(len(advantage_values))
            ]
        ),
        "objective_second_step": objective(lengths, ratios, advantage_values),
    }


@EXAMPLES.by("second phase adds the format reward")
def second_phase(example: Example) -> Found:
    """The environment adds the rewards."""
    iou, form = example.values["iou"], example.values["format"]
    return {
        "advantage_first_phase_n_minus_1": plain([*iou.tolist(), 1.0]),
        "advantage_second_phase_n_minus_1": plain([*(iou + form).tolist(), 2.0]),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
