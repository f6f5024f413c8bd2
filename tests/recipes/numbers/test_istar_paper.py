"""Worked examples of the paper of istar, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Train
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("istar")
ISTAR = recipes.ISTAR
STEP, EPISODE = ISTAR.chain("advantage")
PAIRS = next(link.loss for link in ISTAR.losses() if isinstance(link, Train))


def given_steps(**options: Any) -> Recipe:
    """Return only the policy loss; the reward of a step is its advantage."""
    rewards = GroupRelative(column="reward", level="step", center="none", scale="none")
    return given_advantages(ISTAR, **options).replace(advantage=rewards)


def group(steps: list[Value], rewards: Value, beta: float = 0.05) -> dict[str, Any]:
    """Return trajectories whose steps have one token each, with these step rewards."""
    ratios = (np.concatenate(steps) / beta - 9.0).tolist()
    return {
        "members": [
            {"path": "1 | 3" + " ~ 9 | 3" * (len(each) - 1), "reward": float(reward)}
            for each, reward in zip(steps, rewards, strict=True)
        ],
        "columns": {"token": {"reward_model_logprob": ratios, "reward_reference_logprob": [-9.0] * len(ratios)}},
        "reward_model": {"logprob": ratios},
    }


def trajectories(example: Example) -> dict[str, Any]:
    """The three trajectories of the examples have three, one and two steps."""
    return group(np.split(example.values["s"], [3, 4]), example.values["R"])


def step_rewards(model: list[float], reference: list[float], path: str) -> Value:
    columns = {"token": {"reward_model_logprob": model, "reward_reference_logprob": reference}}
    members = [{"path": path, "reward": 1.0}]
    return computed(ISTAR, ["step.process_reward"], members=members, columns=columns)["step.process_reward"]


@EXAMPLES.by("step rewards")
def rewards(example: Example) -> Found:
    model, old = (
        [*example.values[f"{name}1"].tolist(), *example.values[f"{name}2"].tolist()] for name in ("phi", "old")
    )
    result = step_rewards(model, old, "1 | 3 3 3 ~ 9 | 3 3")
    return {"step_1": result[0], "step_2": result[1]}


@EXAMPLES.by("the reference of the reward model moves with the policy")
def moves(example: Example) -> Found:
    phi, *old = (example.values[name].tolist() for name in ("phi", "old_1", "old_2"))
    return {f"iteration_{place}": step_rewards(phi, each, "1 | 3 3") for place, each in enumerate(old, 1)}


@EXAMPLES.by("two successes and a failure of unequal numbers of steps")
def pairs(example: Example) -> Found:
    def loss(reduce: Any) -> Value:
        link = Train(replace(PAIRS, reduce=reduce), model="reward_model")
        batch = group([example.values[name] for name in ("s1", "s2", "f")], np.array([1.0, 1.0, 0.0]))
        result = computed(ISTAR.replace(loss=(link, ISTAR.chain("loss")[1])), ["loss.reward_model"], **batch)
        return result["loss.reward_model"]

    assert PAIRS.reduce == "sum"
    return {"loss": loss("sum"), "loss_of_the_code": loss("mean")}


@EXAMPLES.by("the pairs of all groups weigh the same")
def all_pairs(example: Example) -> Found:
    (high, middle, low), (better, worse) = (example.values[name] for name in "ab")
    rollouts = {
        "a": [(high, 1.0), (middle, 1.0), (low, 0.0), (9.0, None)],
        "b": [(better, 1.0), (worse, 0.0)],
        "c": [(5.0, 1.0)],
    }
    members, ratios = [], []
    for name, group_ in rollouts.items():
        for total, reward in group_:
            members.append({"group": name, "path": "1 | 3", **({} if reward is None else {"reward": reward})})
            ratios.append(float(total) / 0.05 - 9.0)
    columns = {"token": {"reward_model_logprob": ratios, "reward_reference_logprob": [-9.0] * len(ratios)}}
    model = {"logprob": ratios}
    result = computed(ISTAR, ["loss.reward_model"], members=members, columns=columns, reward_model=model)
    return {"loss": result["loss.reward_model"]}


@EXAMPLES.by("advantages of three trajectories of three, one and two steps")
def levels(example: Example) -> Found:
    def compute(*links: GroupRelative) -> Value:
        return computed(ISTAR.replace(advantage=links), ["step.advantage"], **trajectories(example))["step.advantage"]

    zero = replace(STEP, coefficient=0.0)
    return {"episode": compute(zero, EPISODE), "step": compute(STEP), "advantage": compute(STEP, EPISODE)}


@EXAMPLES.by("the same by RLOO, statistics of first steps")
def leave_one_out(example: Example) -> Found:
    def compute(*links: GroupRelative) -> Value:
        changed_links = tuple(replace(link, center="leave_one_out", scale="none") for link in links)
        return computed(ISTAR.replace(advantage=changed_links), ["step.advantage"], **trajectories(example))[
            "step.advantage"
        ]

    zero = replace(STEP, coefficient=0.0)
    return {"episode": compute(zero, EPISODE), "step_over_all_steps": compute(STEP)}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    recipe = ISTAR.replace(reward=ISTAR.chain("reward")[0], advantage=replace(EPISODE, add=False))
    return {"episode_advantage": advantages(recipe, [*example.values["R"], np.nan])[0]}


@EXAMPLES.by("ratio of a step")
def ratio(example: Example) -> Found:
    given = example.values
    members = [
        {"path": "1 | 3 3 ~ 9 | 3 3 3", "reward": 0.0, "steps": [{"reward": float(each)} for each in given["A"]]}
    ]
    policy = {"logprob": (np.concatenate([given["d1"], given["d2"]]) - 1.0).tolist()}
    names = ["loss", "gradient.logprob"]
    clipped = computed(given_steps(), names, members=members, policy=policy)
    free = computed(given_steps(clip=None), names, members=members, policy=policy)["gradient.logprob"]
    return {
        "objective": -clipped["loss"],
        "ratio_1": -2 * free[:1] / given["A"][0],
        "ratio_2": -2 * free[-1:] / given["A"][1],
    }


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    given = example.values
    members = [{"path": "1 | 3 ~ 9 | 3", "reward": 0.0, "steps": [{"reward": float(each)} for each in given["A"]]}]

    def objective(ratios: Value) -> Value:
        policy = {"logprob": (ratios - 1.0).tolist()}
        return -computed(given_steps(), ["loss"], members=members, policy=policy)["loss"]

    return {name: objective(given[name]) for name in ("first", "second")}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
