"""Worked examples of the paper of subpo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative

EXAMPLES = PaperExamples("subpo")
RECIPE = recipes.SUBPO
GIVEN = RECIPE.replace(advantage=GroupRelative(column="given", level="token", center="none", scale="none"))
"""The loss for given weights of actions."""


def path(count: int) -> str:
    return "1 | 3" + " ~ 9 | 3" * (count - 1)


@EXAMPLES.by("coverage along a path")
def coverage(example: Example) -> Found:
    """The first cell of a new state is the state itself; the environment pays for others, and at the end."""
    gains = example.values["new_cells"]
    visited = np.cumsum([0.0, *(gains > 0)])[:-1]  # states are numbered in the order of their first visit
    rewards = [*(gains - (gains > 0))[:-1], gains[-1]]
    steps = [
        {"state": f"state {state:.0f}", "reward": float(reward)} for state, reward in zip(visited, rewards, strict=True)
    ]
    result = computed(
        RECIPE,
        ["step.step_score", "token.advantage"],
        members=[{"path": path(len(gains)), "steps": steps, "reward": 0}],
    )
    return {"marginal_gain": result["step.step_score"], "return_to_go": result["token.advantage"]}


def loss(*paths: tuple[Value, Value], unscored: int = 0) -> Value:
    """Return the loss of paths with these weights and log-probs; further paths have no value."""
    lengths = [len(advantages) for advantages, _ in paths]
    members = [{"path": path(length), "reward": 0.0} for length in lengths]
    members += [{"path": path(2)}] * unscored
    advantages = np.concatenate([each for each, _ in paths] + [np.full(2, 9.0)] * unscored)
    logprobs = np.concatenate([each for _, each in paths] + [np.full(2, -1.0)] * unscored)
    return computed(
        GIVEN,
        ["loss"],
        members=members,
        columns={"token": {"given": advantages.tolist()}},
        policy={"logprob": logprobs.tolist()},
    )["loss"]


@EXAMPLES.by("weights and loss of one path")
def one_path(example: Example) -> Found:
    return {"loss": loss((example.values["w"], example.values["logp"]))}


@EXAMPLES.by("three paths")
def three_paths(example: Example) -> Found:
    given = example.values
    return {"loss": loss(*((given[name] / 8, given[f"logp_{name}"]) for name in "abc"))}


@EXAMPLES.by("a path without a value (convention)")
def unscored(example: Example) -> Found:
    return {"loss": loss((example.values["F"] / 8, example.values["logp"]), unscored=1)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
