"""Worked examples of SDPO, computed by the recipe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.schedule import SyncModel
from agentrl_core.update.model_sync import blend_models

EXAMPLES = PaperExamples("sdpo")


def gradient(example: Example, members: list[dict[str, Any]], others: int = 0) -> Found:
    """The gradient of the tokens with a teacher; `others` tokens behind them have none."""
    teacher, policy = (example.values[name].tolist() for name in ("q", "p"))
    found = computed(
        recipes.SDPO,
        ["gradient.logprob"],
        members=members,
        columns={"token": {"teacher_logprob": [*teacher, *["nan"] * others]}},
        policy={"logprob": [*policy, *[-1.0] * others]},
    )["gradient.logprob"]
    assert not found[len(teacher) :].any()
    return {"gradient": found[: len(teacher)]}


@EXAMPLES.by("a failure that has a solution, and the solution")
def failure(example: Example) -> Found:
    p = example.values["p"].tolist()
    members = [{"path": "1 | 3 4", "reward": 0, "logprobs": p}, {"path": "1 | 5 6 7", "reward": 1}]
    return gradient(example, members, others=3)


@EXAMPLES.by("two turns, a tool's tokens between them")
def turns(example: Example) -> Found:
    p = example.values["p"].tolist()
    return gradient(example, [{"path": "1 | 3 ~ 9 9 | 4 5", "reward": 0, "logprobs": p}])


@EXAMPLES.by("an older policy sampled")
def older(example: Example) -> Found:
    old = example.values["old"].tolist()
    return gradient(example, [{"path": "1 | 3 4", "reward": 0, "logprobs": old}])


@EXAMPLES.by("the teacher follows")
def follows(example: Example) -> Found:
    hook = recipes.SDPO.hooks
    assert isinstance(hook, SyncModel)
    assert (hook.source, hook.target, hook.unit) == ("policy", "teacher", "steps")
    models = {}
    for name in ("teacher", "policy"):
        models[name] = torch.nn.Linear(2, 1, bias=False).double()
        with torch.no_grad():
            models[name].weight[:] = torch.from_numpy(example.values[name])
    blend_models(models["teacher"], models["policy"], hook.share(1), "the hook")
    return {"teacher": models["teacher"].weight.detach().numpy()[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
