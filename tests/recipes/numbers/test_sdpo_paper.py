"""Worked examples of SDPO, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.loss import Divergence, Tokens
from agentrl_core.schedule import SyncModel
from agentrl_core.update.model_sync import blend_models

EXAMPLES = PaperExamples("sdpo")
LOSS = recipes.SDPO.loss
assert isinstance(LOSS, Divergence)
SAMPLED = recipes.SDPO.replace(loss=replace(LOSS, support="sampled"))


def gradient(example: Example, members: list[dict[str, Any]], others: int = 0) -> Found:
    """Return the gradient of the tokens with a teacher; the `others` tokens after them have none."""
    teacher, policy = (example.values[name].tolist() for name in ("q", "p"))
    gradients = computed(
        SAMPLED,
        ["gradient.logprob"],
        members=members,
        columns={"token": {"teacher_logprob": [*teacher, *["nan"] * others]}},
        policy={"logprob": [*policy, *[-1.0] * others]},
    )["gradient.logprob"]
    assert not gradients[len(teacher) :].any()
    return {"gradient": gradients[: len(teacher)]}


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


@EXAMPLES.by("two of four tokens and the tail, at two places")
def likeliest(example: Example) -> Found:
    p, q, other = (torch.from_numpy(example.values[name]) for name in ("p", "q", "other"))
    policy_probabilities, teacher = torch.stack([p, other]), torch.stack([q, other])
    logprobs = (
        torch.cat([policy_probabilities, 1.0 - policy_probabilities.sum(1, keepdim=True)], dim=1).log().requires_grad_()
    )
    streams = {
        "weight_kl": torch.full((2,), 0.5).double(),
        "old_logprob": torch.stack([torch.tensor(example.values["old"]), other[0]]).log().double(),
        "teacher_top_ids": torch.tensor([[3, 4], [3, 4]]),
        "teacher_top_logprobs": teacher.log(),
    }

    def loss(divergence: Divergence) -> torch.Tensor:
        tokens = Tokens(logprobs[:, 0].detach(), torch.zeros(2), streams, SimpleNamespace(top_logprobs=logprobs))
        return divergence.evaluate(tokens)[0]

    (gradient,) = torch.autograd.grad(loss(LOSS), logprobs)
    return {
        "loss": loss(LOSS).item(),
        "gradient_by_log_prob": gradient[0, :2].numpy(),
        "symmetric": loss(replace(LOSS, beta=0.5)).item(),
    }


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
