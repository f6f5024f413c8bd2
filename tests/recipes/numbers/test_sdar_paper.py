"""Worked examples of the paper of sdar, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Sum
from agentrl_core.schedule import SyncModel
from agentrl_core.update.model_sync import blend_models

EXAMPLES = PaperExamples("sdar")
LOSS = recipes.SDAR.loss
assert isinstance(LOSS, Sum)
ALONE = recipes.SDAR.replace(loss=replace(LOSS, first_coefficient=0.0))
GIVEN = recipes.SDAR.replace(advantage=GroupRelative(center="none", scale="none"))


def gated_loss(example: Example, members: list[dict[str, Any]]) -> Found:
    """Return loss and gradient of the gated term alone, at the sampling policy."""
    p, q = (example.values[name].tolist() for name in ("p", "q"))
    return dict(
        computed(
            ALONE,
            ["loss", "gradient.logprob"],
            members=members,
            columns={"token": {"teacher_logprob": q, "reference_logprob": p}},
            policy={"logprob": p},
        )
    )


@EXAMPLES.by("a failure and a success of unequal length")
def unequal(example: Example) -> Found:
    p = example.values["p"].tolist()
    result = gated_loss(
        example,
        [
            {"path": "1 | 3 4", "reward": 0, "logprobs": p[:2]},
            {"path": "1 | 5", "reward": 1, "logprobs": p[2:]},
        ],
    )
    return {"loss": result["loss"], "gradient": result["gradient.logprob"]}


@EXAMPLES.by("two turns, a tool's tokens between them")
def turns(example: Example) -> Found:
    members = [{"path": "1 | 3 ~ 9 9 | 4 5", "reward": 0, "logprobs": example.values["p"].tolist()}]
    return {"gradient": gated_loss(example, members)["gradient.logprob"]}


@EXAMPLES.by("a later step of the batch")
def later(example: Example) -> Found:
    old, new, q, ref, advantages = (example.values[name].tolist() for name in ("old", "p", "q", "ref", "A"))
    result = computed(
        GIVEN,
        ["loss"],
        members=[
            {"path": "1 | 3", "reward": reward, "logprobs": [logprob]}
            for reward, logprob in zip(advantages, old, strict=True)
        ],
        columns={"token": {"teacher_logprob": q, "reference_logprob": ref}},
        policy={"logprob": new},
    )
    return {"loss": result["loss"]}


@EXAMPLES.by("the teacher of the next iteration")
def follows(example: Example) -> Found:
    hook = recipes.SDAR.hooks
    assert isinstance(hook, SyncModel)
    assert (hook.source, hook.target, hook.unit) == ("policy", "teacher", "iterations")
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
