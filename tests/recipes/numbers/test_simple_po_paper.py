"""Worked examples of the paper of simple_po, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Train
from agentrl_core.loss import Value as ValueLoss

EXAMPLES = PaperExamples("simple_po")
SPO = recipes.SIMPLE_PO.replace(epochs=1, minibatches=1)
CRITIC, POLICY = SPO.chain("loss")
LOSSES = given_advantages(SPO)
WHITENING = GroupRelative(column="advantage", level="token", group_by="batch", eps=1e-8)
CODE = SPO.replace(
    advantage=(*SPO.chain("advantage"), WHITENING),
    loss=(Train(ValueLoss("token_mean", clip=0.2), model="critic"), POLICY),
)
"""The recipe with the normalisation and the value clip of the authors' code."""


def by_ratio(ratio: Value, advantages: Value) -> tuple[Value, Value, Value]:
    """Return the loss, the objective of each action, and its slope by the ratio."""
    old, new = np.full(len(ratio), -1.0), np.log(ratio) - 1.0
    result = single_tokens(LOSSES, old, new, advantages)
    alone = [
        single_tokens(LOSSES, *(each[[at]] for each in (old, new, advantages)))["loss"] for at in range(len(ratio))
    ]
    return result["loss"], -np.concatenate(alone), -result["gradient.logprob"] * len(ratio) / ratio


@EXAMPLES.by("penalty and slope inside and outside of the bound")
def penalty(example: Example) -> Found:
    loss, objective, slope = by_ratio(example.values["r"], example.values["A"])
    return {"objective": objective, "slope_in_ratio": slope, "loss": loss}


@EXAMPLES.by("a small advantage has a small penalty")
def small(example: Example) -> Found:
    return {"objective": by_ratio(example.values["r"], example.values["A"])[1]}


@EXAMPLES.by("the second optimizer step pulls back what is too far")
def later_step(example: Example) -> Found:
    given = example.values
    first, (second, _, slope) = (by_ratio(np.exp(given[name] - given["old"]), given["A"]) for name in ("old", "second"))
    return {"first_loss": first[0], "second_loss": second, "slope_in_ratio": slope}


def episode(example: Example) -> dict[str, Any]:
    """Three actions of one token, the reward at the end."""
    given = example.values
    return {
        "members": answers([3], [float(given["rew"].sum())]),
        "columns": {"token": {"value": given["V"].tolist(), "old_value": given["V"].tolist()}},
        "policy": {"logprob": (np.log(given["r"]) - 1.0).tolist()},
        "critic": {"value": given["V_new"].tolist()},
    }


@EXAMPLES.by("GAE over three steps, then total loss")
def total(example: Example) -> Found:
    names = ["token.advantage", "token.return", "loss.policy", "loss.critic"]
    paper, code = (computed(recipe, names, **episode(example)) for recipe in (SPO, CODE))
    return {
        "advantage": paper["token.advantage"],
        "value_target": paper["token.return"],
        "value_loss_of_the_paper": paper["loss.critic"],
        "advantage_of_mini_batch": code["token.advantage"],
        "policy_loss": code["loss.policy"],
        "value_loss_of_the_code": code["loss.critic"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
