"""Worked examples of the paper of a3t, computed by the recipe."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from case_collector import running
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import Collector, recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.reward import OutcomeScore
from agentrl_core.rollout import Independent

EXAMPLES = PaperExamples("a3t")
WEIGHTED = recipes.A3T.replace(reward=OutcomeScore(), advantage=GroupRelative(center="none", scale="none"))
"""The recipe with the weights of an example as scores."""


def task_trajectories(group: str, successes: int, failures: int) -> list[dict[str, Any]]:
    """Return one-token trajectories of a task: those that solved it, then the others."""
    outcomes = [True] * successes + [False] * failures
    return [{"group": group, "path": "1 | 3", "reward": float(each), "success": each} for each in outcomes]


def weights(*members: dict[str, Any]) -> Value:
    return computed(recipes.A3T, ["draw.advantage"], members=members)["draw.advantage"]


def known(count: int) -> dict[str, Any]:
    return {"token": {"recomputed_logprob": [-1.0] * count}}


@EXAMPLES.by("one task: two successes and a failed trajectory of several turns")
def one_task(example: Example) -> Found:
    """The recipe's loss is a mean over trajectories, like N2; N3 sums them."""
    outcome_groups = [example.values[name] for name in ("s1", "s2", "f")]
    paths = ["1 | 3 ~ 9 | 3 ~ 9 | 3", "1 | 3", "1 | 3 3 ~ 9 | 3 ~ 9 | 3"]
    members = [
        {"path": path, "reward": float(solved), "success": solved}
        for path, solved in zip(paths, (True, True, False), strict=True)
    ]
    numbers: dict[str, Any] = {"columns": known(8), "policy": {"logprob": np.concatenate(outcome_groups).tolist()}}
    result = computed(recipes.A3T, ["draw.advantage", "loss"], members=members, **numbers)
    signed = [{**member, "reward": 1.0 if member["success"] else -1.0} for member in members]
    return {
        "weight_success": result["draw.advantage"][1],
        "weight_failure": result["draw.advantage"][2],
        "loss": len(members) * result["loss"],
        "loss_with_plus_and_minus_one": computed(WEIGHTED, ["loss"], members=signed, **numbers)["loss"],
    }


@EXAMPLES.by("tasks with unequal numbers of successes and failures")
def unequal(example: Example) -> Found:
    successes, failures = (example.values[name].astype(int).tolist() for name in ("successes", "failures"))
    groups = [
        task_trajectories(str(place), *counts) for place, counts in enumerate(zip(successes, failures, strict=True))
    ]
    group_weights = np.split(weights(*chain(*groups)), np.cumsum([len(group) for group in groups])[:-1])
    return {
        "weight_success": [each[:count].max(initial=0.0) for each, count in zip(group_weights, successes, strict=True)],
        "weight_failure": [each[count:].min(initial=0.0) for each, count in zip(group_weights, successes, strict=True)],
        "sum_of_weights": [each.sum() for each in group_weights],
    }


@EXAMPLES.by("a task with one trajectory")
def alone(example: Example) -> Found:
    del example
    return {"weight": weights(*task_trajectories("solved", 1, 0), *task_trajectories("failed", 0, 1))}


@EXAMPLES.by("a synthesised step has no ratio")
def synthesised(example: Example) -> Found:
    logprobs = [*example.values["reason"], *example.values["action"]]
    result = computed(
        WEIGHTED,
        ["loss", "gradient.logprob"],
        members=[{"path": "1 | 3 4 5", "reward": float(example.values["w"]), "unsampled": True}],
        columns=known(3),
        policy={"logprob": logprobs},
    )
    np.testing.assert_allclose(result["gradient.logprob"], result["gradient.logprob"][0])
    return {"loss": result["loss"], "slope_in_each_log_probability": result["gradient.logprob"][0]}


@EXAMPLES.by("trajectories accumulate over rounds")
def accumulated(example: Example) -> Found:
    """Run rounds of a collector with a store, with the example's group sizes and without attempts."""
    recipe, results = recipes.A3T.replace(rollout=Independent()), []
    with running(recipe, {"tasks": 1}) as run:
        world, store = run.world, run.collect.store
        run.collect = Collector(world, world, recipe, store=store, seed=1, task_pool=1, allow_changes=True)
        for solved, failed in zip(example.values["s"].astype(int), example.values["f"].astype(int), strict=True):
            answers = [{"reward": 1}] * solved + [{"reward": 0}] * failed
            batch = run.batch({"tasks": 1, "group_size": len(answers), "answers": {"train 0": answers}})
            results.append(recipe.credit(batch).column("advantage", "draw"))
            run.close(batch, {})
    return {
        "successes": [(each > 0).sum() for each in results],
        "failures": [(each < 0).sum() for each in results],
        "weight_success": [each.max() for each in results],
        "weight_failure": [each.min() for each in results],
    }


@EXAMPLES.by("one trajectory of four has no result (convention)")
def unscored(example: Example) -> Found:
    del example
    draw_weights = weights(*task_trajectories("task", 1, 2), {"group": "task", "path": "1 | 3"})
    return {"weight": [*draw_weights[:3], np.nan if draw_weights[3] == 0 else draw_weights[3]]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
