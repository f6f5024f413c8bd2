"""Worked examples of the paper of sapo_swarm, computed by the recipe."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, plain_reward
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from riddles import PaidRiddles, in_turn, solve

from agentrl_core import recipes
from agentrl_core.recipes.sapo_swarm import SharedExperience

EXAMPLES = PaperExamples("sapo_swarm")
LOCAL = given_advantages(recipes.SAPO_SWARM).replace(old_logprob=recipes.SAPO_SWARM.old_logprob)
CommonExamples(EXAMPLES, recipes.SAPO_SWARM, but=["the second optimizer step of a batch clips"])


def imported(writer: Value, old: Value, new: Value, advantage_values: Value) -> Found:
    """Return loss and gradient of another node's tokens, from the log-probs of its model and of the local one."""
    members = [
        {**member, "origin": "imported", "logprobs": [float(logprob)]}
        for member, logprob in zip(answers([1] * len(old), advantage_values.tolist()), writer, strict=True)
    ]
    columns = {"token": {"recomputed_logprob": old.tolist()}}
    names = ["loss", "gradient.logprob"]
    return dict(computed(LOCAL, names, members=members, columns=columns, policy={"logprob": new.tolist()}))


@EXAMPLES.by("a local group of five and an external group of three")
def groups(example: Example) -> Found:
    local, external = advantages(plain_reward(recipes.SAPO_SWARM), example.values["local"], example.values["external"])
    return {"local": local, "external": external}


@EXAMPLES.by("an external group without difference leaves, a local one stays with advantage 0")
def choice(example: Example) -> Found:
    given = example.values
    names = ["ext_1", "ext_2", "ext_3"]
    with tempfile.TemporaryDirectory() as folder:
        task = {"question": "riddle?", "domain": "riddles", "payload": None}
        lines = [
            {"task": {"task_id": name, **task}, "attempts": [[str(reward)] for reward in given[name]]} for name in names
        ]
        Path(folder, "other.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        recipe = recipes.SAPO_SWARM.replace(rollout=SharedExperience(folder=folder, node="own"))
        speak = in_turn(*map(str, given["local"]))
        batch = solve(recipe, speak, world=PaidRiddles(), tasks=2, group_size=len(given["local"])).batch
    shared, tasks = batch.column("shared", "draw") > 0, batch.texts("task_id", "draw")
    shared_tasks = {task for task, other in zip(tasks, shared, strict=True) if other}
    return {
        "chance_of_external": np.array([name in shared_tasks for name in names]),
        "advantage_local": recipe.credit(batch).column("advantage", "draw")[~shared],
    }


@EXAMPLES.by("external text is scored by the local model: the ratio starts at 1")
def scored(example: Example) -> Found:
    writer, old, new, advantage_values = (example.values[name] for name in ("writer", "old", "new", "A"))
    first = imported(writer, old, old, advantage_values)
    return {
        "first_ratio": -first["gradient.logprob"] * len(advantage_values) / advantage_values,
        "loss": imported(writer, old, new, advantage_values)["loss"],
    }


@EXAMPLES.by("one mean over tokens of local and external completions")
def one_mean(example: Example) -> Found:
    given = example.values
    local, external = answers(
        [int(given["n_local"]), int(given["n_external"])], [given["A_local"], given["A_external"]]
    )
    members = [local, {**external, "origin": "imported"}]
    columns = {"token": {"recomputed_logprob": [-1.0] * int(given["n_local"] + given["n_external"])}}
    return {"loss": computed(LOCAL, ["loss"], members=members, columns=columns)["loss"]}


@EXAMPLES.by("the second optimizer step of a batch clips")
def second_step(example: Example) -> Found:
    old, second, advantage_values = (example.values[name] for name in ("old", "second", "A"))
    result = imported(old, old, second, advantage_values)
    return {"loss": result["loss"], "has_gradient": result["gradient.logprob"] != 0}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
