"""Worked examples of the paper of tcod, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import in_turn, solve

from agentrl_core import recipes
from agentrl_core.advantage import Discounted
from agentrl_core.loss import Divergence, Policy
from agentrl_core.model.logit_statistics import bin_divergence
from agentrl_core.recipes.tcod import TemporalCurriculum

EXAMPLES = PaperExamples("tcod")
CURRICULUM, LOSS = recipes.TCOD.rollout, recipes.TCOD.loss
assert isinstance(CURRICULUM, TemporalCurriculum)
assert isinstance(LOSS, Divergence)
LIKE_THE_CODE = recipes.ON_POLICY_DISTILLATION.replace(
    advantage=Discounted(column="process_reward", level="token", gamma=0.0), loss=Policy("step_mean")
)


@EXAMPLES.by("the depth of the first steps")
def depth(example: Example) -> Found:
    return {"depth": np.array([CURRICULUM.limit(int(step) - 1) for step in example.values["n"]])}


@EXAMPLES.by("three episodes at a depth of two turns")
def cut(example: Example) -> Found:
    program = replace(CURRICULUM, start=int(example.values["k"]))
    runs = [
        solve(program, in_turn(*["look"] * (int(turns) - 1), "<answer>right</answer>"), group_size=1)
        for turns in example.values["needs"]
    ]
    return {
        "turns": np.array([run.num_requests for run in runs]),
        "cut": np.array([run.rows[0].status == "truncated" for run in runs]),
    }


@EXAMPLES.by("two trajectories of unequal length, one without a reward")
def unequal(example: Example) -> Found:
    p, q = (np.append(example.values[name], 1.0 - example.values[name].sum()) for name in ("p", "q"))
    divergence = float(bin_divergence(*(torch.from_numpy(each[None]).log() for each in (p, q)), beta=LOSS.beta))
    second, other = example.values["more"].tolist()
    members = [{"path": "1 | 3 ~ 9 9 | 4", "reward": 0}, {"path": "1 | 5"}]
    return {
        "divergence": divergence,
        "loss": computed(recipes.TCOD, ["loss"], members=members, policy={"divergence": [divergence, second, other]})[
            "loss"
        ],
    }


@EXAMPLES.by("the code's loss of two turns")
def code(example: Example) -> Found:
    old, new, q = (example.values[name].tolist() for name in ("old", "p", "q"))
    result = computed(
        LIKE_THE_CODE,
        ["loss"],
        members=[{"path": "1 | 3 4 ~ 9 | 5", "reward": 0, "logprobs": old}],
        columns={"token": {"teacher_logprob": q}},
        policy={"logprob": new},
    )
    return {"loss": result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_except_the_omitted_one_is_computed() -> None:
    assert {*EXAMPLES.all_names} - {*EXAMPLES.names} == {"the last turn of a success of three"}
