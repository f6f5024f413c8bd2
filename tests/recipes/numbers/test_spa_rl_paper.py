"""Worked examples of the paper of spa_rl, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("spa_rl")


@EXAMPLES.by("loss of the progress model")
def progress(example: Example) -> Found:
    turns = [example.values["c_a"], example.values["c_b"]]
    members = [
        {"path": "1 " + " ~ 9 ".join("| 3" for _ in each), "reward": reward}
        for each, reward in zip(turns, (1, 0), strict=True)
    ]
    result = computed(
        recipes.SPA_RL,
        ["loss"],
        stage="warm_start",
        members=members,
        columns={"draw": {"score": [1, 0]}},
        progress={"value": np.concatenate(turns).tolist()},
    )
    return {"loss": result["loss"]}


def three_turns(progress: Value, executed: Value) -> dict[str, Any]:
    count = len(progress)
    steps = [{"facts": {"executed": flag}} for flag in executed.astype(int).tolist()]
    return {
        "members": [{"path": "1 " + " ~ 9 ".join("| 3" for _ in progress), "reward": 1, "steps": steps}],
        "columns": {
            "step": {"progress": progress.tolist()},
            "token": {"value": [0.0] * count, "reference_logprob": [-1.0] * count},
        },
    }


@EXAMPLES.by("step rewards of the paper by the notes")
def rewards(example: Example) -> Found:
    result = computed(recipes.SPA_RL, ["step.step_score"], **three_turns(example.values["c"], example.values["g"]))
    return {"reward": result["step.step_score"]}


@EXAMPLES.by("a last step that no observation follows")
def without_verdict(example: Example) -> Found:
    given = example.values
    steps = [{"facts": {"executed": int(flag)}} for flag in given["executed"]]
    scores = computed(
        recipes.SPA_RL,
        ["step.step_score"],
        members=[
            {"path": "1 | 3 ~ 9 | 3 ~ 9 | 3", "reward": 1, "steps": [*steps, {}]},
            {"path": "1 | 3", "reward": 0},
        ],
        columns={
            "step": {"progress": np.concatenate([given["c_a"], given["c_b"]]).tolist()},
            "token": {"value": [0.0] * 4, "reference_logprob": [-1.0] * 4},
        },
    )["step.step_score"]
    return {"reward_a": scores[:3], "reward_b": scores[3:]}


@EXAMPLES.by("with a KL by token")
def priced(example: Example) -> Found:
    given = example.values
    iteration = three_turns(given["r"] - 0.5 * (given["r"] > 0), given["r"] > 0)
    iteration["columns"]["token"]["reference_logprob"] = (-1.0 - given["k"]).tolist()
    # Without values and without lookahead the advantage of a token is its reward.
    gae = replace(recipes.SPA_RL.chain("advantage")[0], gamma=0.0, kl_coefficient=float(given["beta"]))
    result = computed(recipes.SPA_RL.replace(advantage=gae), ["token.advantage"], **iteration)
    return {"reward": result["token.advantage"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
