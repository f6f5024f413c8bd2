"""Worked examples of the paper of ravl, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes

EXAMPLES = PaperExamples("ravl")


def targets(rewards: Value, low: Value, status: str) -> Value:
    """Return targets of a trajectory, by the values of its next states."""
    truncated = status == "truncated"
    steps = [{"reward": float(reward)} for reward in rewards]
    steps[-1]["truncated"] = truncated
    member = {"path": "1 | 3" + " ~ 9 | 3" * (len(steps) - 1), "steps": steps, "reward": 0.0, "status": status}
    columns = {"step": {"value": [0.0, *low[:-1].tolist()], "next_value": low.tolist()}}
    return computed(recipes.RAVL, ["step.return"], members=[member], columns=columns)["step.return"]


@EXAMPLES.by("a dreamed rollout of three steps: the last one bootstraps")
def target(example: Example) -> Found:
    given = example.values
    low = np.minimum.reduce([given[name] for name in ("q1", "q2", "q3")]) - given["alpha"] * given["logp"]
    ended = targets(given["r"][:2], low[:2], "finished")
    return {
        "target": targets(given["r"], low, "truncated"),
        "target_if_the_second_step_ends": [*ended, *targets(given["r"][2:], low[2:], "truncated")],
    }


@EXAMPLES.by("critic loss with diversity")
def critics(example: Example) -> Found:
    """Two heads of one critic; the recipe's loss is half the square."""
    given = example.values
    members = [
        {"path": "1 | 3", "steps": [{"reward": float(target)}], "reward": 0.0, "group": f"{place}"}
        for place, target in enumerate(given["y"])
    ]
    columns = {"step": {"value": [0.0, 0.0], "next_value": [0.0, 0.0]}}
    heads = np.stack([given["q1"], given["q2"]], axis=1).tolist()
    result = computed(recipes.RAVL, ["loss.critic"], members=members, columns=columns, critic={"value": heads})
    return {"error": 2 * result["loss.critic"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
