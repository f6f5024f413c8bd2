"""Worked examples of the paper of dr_mas, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("dr_mas")
CommonExamples(EXAMPLES, recipes.DR_MAS)
CODE = recipes.DR_MAS.replace(advantage=replace(recipes.DR_MAS.advantage, ddof=1))
"""The recipe with the code's variance, over n - 1."""


def agent_advantages(recipe: Recipe, *calls: list[int], rewards: Value) -> list[Value]:
    """Return advantages of the steps of each agent, given its number of calls in each rollout."""
    members = [
        {"path": "1 " + " ~ 9 ".join("| 3" for _ in range(count)), "agent": agent, "reward": float(reward)}
        for agent, of_rollouts in enumerate(calls)
        for count, reward in zip(of_rollouts, rewards, strict=True)
    ]
    step_advantages = computed(recipe, ["step.advantage"], members=members)["step.advantage"]
    return np.split(step_advantages, np.cumsum([sum(of_rollouts) for of_rollouts in calls])[:-1])


@EXAMPLES.by("three rollouts, a solver and a verifier called unevenly")
def uneven(example: Example) -> Found:
    rewards = example.values["R"]
    solver, verifier = agent_advantages(recipes.DR_MAS, [1, 1, 1], [1, 2, 1], rewards=rewards)
    shared = recipes.GRPO.replace(advantage=replace(recipes.GRPO.advantage, ddof=0, eps=0.0))
    return {"solver": solver, "verifier": verifier, "shared": advantages(shared, rewards)[0]}


@EXAMPLES.by("the same by the code")
def code(example: Example) -> Found:
    del example
    return {"advantage": agent_advantages(CODE, [1, 2, 1], rewards=np.array([1.0, 0.0, 0.0]))[0]}


@EXAMPLES.by("an agent called once in the group")
def once(example: Example) -> Found:
    raw = CODE.replace(advantage=replace(CODE.advantage, singleton="raw"))
    return {"advantage": agent_advantages(raw, [1], rewards=np.array([float(example.values["R"])]))[0]}


@EXAMPLES.by("one rollout without a score (convention)")
def unscored(example: Example) -> Found:
    return {
        "advantage": agent_advantages(recipes.DR_MAS, [1, 1, 1, 1], rewards=np.array([*example.values["V"], np.nan]))[
            0
        ][:3]
    }


@EXAMPLES.by("objective of an agent: whole outputs")
def policy_objective(example: Example) -> Found:
    losses = given_advantages(recipes.DR_MAS)
    old = np.full(2, -1.0)
    return {"objective": -single_tokens(losses, old, old + np.log(example.values["rho"]), example.values["A"])["loss"]}


@EXAMPLES.by("two tasks, an agent called more often, and outputs of several tokens")
def tasks(example: Example) -> Found:
    """Tokens of a tool lie between the turns of the second agent."""
    moved = example.values["d"]
    result = computed(
        recipes.DR_MAS.replace(minibatches=1),
        ["loss", "gradient.logprob", "step.advantage"],
        members=[
            {"group": "x", "path": "1 | 3 4", "reward": 1, "agent": 0},
            {"group": "x", "path": "1 | 3 ~ 9 9 | 4", "reward": 1, "agent": 1},
            {"group": "x", "path": "1 | 3", "reward": 0, "agent": 0},
            {"group": "x", "path": "1 | 3", "reward": 0, "agent": 1},
            {"group": "y", "path": "2 | 3", "reward": 1, "agent": 0},
            {"group": "y", "path": "2 | 3", "reward": 0, "agent": 0},
            {"group": "y", "path": "2 | 3", "agent": 0},
        ],
        policy={"logprob": (moved - 1.0).tolist()},
    )
    return {
        "advantage": result["step.advantage"][:7],
        "loss": result["loss"],
        "gradient": result["gradient.logprob"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
