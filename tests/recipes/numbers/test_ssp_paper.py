"""Worked examples of the paper of ssp, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("ssp")


def self_play(rewards: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """Advantages of the solvers and of the proposer of each question."""
    paid = [recipes.SSP.rollout.paid(float(np.mean(each))) for each in rewards]
    members = [
        {"group": name, "path": "1 | 3", "reward": float(reward)}
        for place, each in enumerate(rewards)
        for name, reward in [*((f"solvers {place}", one) for one in each), (f"proposer {place}", paid[place])]
    ]
    found = computed(recipes.SSP, ["draw.advantage"], members=members)["draw.advantage"]
    questions = np.split(found, np.cumsum([len(each) + 1 for each in rewards])[:-1])
    return [each[:-1] for each in questions], [each[-1:] for each in questions]


@EXAMPLES.by("a valid question of five attempts and one of three")
def self_play_rewards(example: Example) -> Found:
    solvers, proposers = self_play([example.values["r_a"], example.values["r_b"]])
    return {"solver_a": solvers[0], "solver_b": solvers[1], "proposer_a": proposers[0], "proposer_b": proposers[1]}


@EXAMPLES.by("an unsolved and a fully solved question")
def self_play_extremes(example: Example) -> Found:
    solvers, proposers = self_play([example.values["r_none"], example.values["r_all"]])
    return {
        "solver_none": solvers[0],
        "proposer_none": proposers[0],
        "solver_all": solvers[1],
        "proposer_all": proposers[1],
    }


@EXAMPLES.by("losses over tokens at ratio one")
def self_play_weights(example: Example) -> Found:
    mask = example.values["mask_solver"].astype(int).tolist()
    found = computed(
        recipes.SSP,
        ["gradient.logprob"],
        members=[
            {"path": "1 | 3*5", "reward": 1.0, "trainable": mask},
            {"path": "1 | 3", "reward": 0.0},
        ],
        columns={"token": {"reference_logprob": [-1.0] * 6}},
        policy={"logprob": [-1.0] * 6},
    )
    return {"solver_weight_of_a_token": -2 * found["gradient.logprob"][:1]}  # of two draws


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
