"""Worked examples of the paper of rl_mle, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.reward import OutcomeScore

EXAMPLES = PaperExamples("rl_mle")
WEIGHTED = recipes.RL_MLE.replace(
    reward=OutcomeScore(),
    advantage=GroupRelative(center="none", scale="none"),
    loss=recipes.RL_MLE.chain("loss")[1],
)
"""The recipe with the advantages of an example as scores."""


def actions(advantages: Value, durations: Value) -> list[dict[str, Any]]:
    """Return one-action episodes with these durations."""
    return [
        {**answer, "steps": [{"facts": {"duration": float(duration)}}]}
        for answer, duration in zip(answers([1] * len(advantages), advantages.tolist()), durations, strict=True)
    ]


@EXAMPLES.by("weights of four actions")
def weights(example: Example) -> Found:
    members = actions(example.values["A"], example.values["dt"])
    result = computed(WEIGHTED, ["token.weight", "loss"], members=members)
    return {"weight": result["token.weight"], "loss": result["loss"]}


@EXAMPLES.by("what it corrects: a fast action is seen ten times as often")
def corrected(example: Example) -> Found:
    counts = (example.values["p"] * 100 / example.values["dt"]).astype(int)
    members = actions(np.ones(counts.sum()), np.repeat(example.values["dt"], counts))
    gradient = computed(WEIGHTED, ["gradient.logprob"], members=members)["gradient.logprob"]
    return {
        "share_of_gradient_without": counts / counts.sum(),
        "share_with": [gradient[: counts[0]].sum() / gradient.sum(), gradient[counts[0] :].sum() / gradient.sum()],
    }


@EXAMPLES.by("rewards")
def rewards(example: Example) -> Found:
    prints, valid = example.values["prints"].tolist(), float(example.values["valid"])
    steps = [{"facts": {"duration": 1.0}}]
    members = [
        {**answers([1], [-10.0])[0], "success": False, "rewards": {"milestones": count}, "steps": steps}
        for count in prints
    ]
    members.append({**answers([1], [valid])[0], "success": True, "rewards": {"milestones": 7}, "steps": steps})
    columns = {"token": {"value": [0.0] * 4, "old_value": [0.0] * 4}}
    scores = computed(recipes.RL_MLE, ["draw.score"], members=members, columns=columns)["draw.score"]
    return {"failed": scores[:3], "valid": scores[3]}


@EXAMPLES.by("weight within the clipped term")
def clipped(example: Example) -> Found:
    members = actions(example.values["A"], example.values["w"])
    policy = {"logprob": (np.log(example.values["ratio"]) - 1.0).tolist()}
    return {"loss": computed(WEIGHTED, ["loss"], members=members, policy=policy)["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
