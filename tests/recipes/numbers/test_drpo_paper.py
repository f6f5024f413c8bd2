"""Worked examples of the paper of drpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.drpo import LengthDecoupled

EXAMPLES = PaperExamples("drpo")
DRPO = recipes.DRPO.replace(minibatches=1)


def with_loss(**options: Any) -> Recipe:
    """Return the recipe with other options of its loss."""
    (loss,) = DRPO.chain("loss")
    assert isinstance(loss, LengthDecoupled)
    return DRPO.replace(loss=replace(loss, **options))


def answer(right: bool | None, *logprobs: float, length: int = 1, group: str = "task") -> dict[str, Any]:
    """Return a rollout with these log-probs, repeated; None: it has no score."""
    repeated = list(logprobs) * length
    member = {"group": group, "path": f"1 | 3*{len(repeated)}", "reward": 0, "logprobs": repeated}
    if right is None:
        return {key: value for key, value in member.items() if key != "reward"}
    return {**member, "success": right}


def loss_and_gradients(
    recipe: Recipe, members: Sequence[dict[str, Any]], new: Value | None = None
) -> tuple[Value, list[Value]]:
    """Return the loss, and its gradient by the mean log-prob of each rollout, at old or new log-probs."""
    logprobs = [value for member in members for value in member["logprobs"]]
    policy = {"logprob": logprobs if new is None else new.tolist()}
    numbers = computed(recipe, ["loss", "gradient.logprob"], members=members, policy=policy)
    ends = np.cumsum([len(member["logprobs"]) for member in members])[:-1]
    return numbers["loss"], [part.sum() for part in np.split(numbers["gradient.logprob"], ends)]


@EXAMPLES.by("three right and two wrong responses of unequal length")
def five(example: Example) -> Found:
    given = example.values
    right = [answer(True, s, length=int(n)) for s, n in zip(given["s_right"], given["length"], strict=True)]
    wrong = [answer(False, s, length=n) for s, n in zip(given["s_wrong"], (7, 3), strict=True)]
    loss, gradients = loss_and_gradients(DRPO, [*right, *wrong])
    return {
        "weight": -np.array(gradients[:3]),
        "objective": -loss,
        "gradient_right": -np.array(gradients[:3]),
        "gradient_wrong": -np.array(gradients[3:]),
    }


@EXAMPLES.by("the longest right response keeps a positive signal, unlike the group advantage")
def longest(example: Example) -> Found:
    """A token stands for a tenth of the limit."""
    lengths = np.round(example.values["length"] / 819.2).astype(int)
    members = [*(answer(True, -1.0, length=int(n)) for n in lengths), answer(False, -1.0)]
    gradients = loss_and_gradients(with_loss(length_at_most=10, sharpness=float(example.values["lam"])), members)[1]
    return {"weight": -np.array(gradients[:3])}


@EXAMPLES.by("lambda large: uniform weights")
def uniform(example: Example) -> Found:
    members = [*(answer(True, -1.0, length=int(n)) for n in example.values["length"]), answer(False, -1.0)]
    gradients = loss_and_gradients(with_loss(sharpness=float(example.values["lam"])), members)[1]
    return {"weight": -np.array(gradients[:3])}


@EXAMPLES.by("a question without a wrong response counts in the mean")
def questions(example: Example) -> Found:
    """The mixed question has one right and two equal wrong responses: J is the difference of their scores."""
    mixed = [answer(right, score, group="a") for right, score in ((True, -0.1), (False, -1.3), (False, -1.3))]
    assert -loss_and_gradients(DRPO, mixed)[0] == pytest.approx(example.values["J"][0], rel=1e-5)
    others = [answer(True, -0.5, group="b"), answer(True, -0.7, group="b"), answer(False, -0.2, group="c")]
    return {"objective": -loss_and_gradients(DRPO, [*mixed, *others])[0]}


@EXAMPLES.by("penalty above the trust region, none below")
def trust_region(example: Example) -> Found:
    """A right response and an equal wrong one leave only a penalty: its loss, and the factor of the drift."""
    given = example.values
    own_tokens = given["m"] > 0
    old, new = given["old"][own_tokens], given["new"][own_tokens]
    members = [answer(right, *old) for right in (True, False)]
    loss, gradients = loss_and_gradients(DRPO, members, np.tile(new, 2))
    # Each mean log-prob is half of the drift, and of opposite sign in J.
    multiplier = -sum(gradients)
    below = loss_and_gradients(DRPO, members, np.tile(old - 0.00005, 2))[1]
    return {
        "kl": loss / multiplier,
        "multiplier": multiplier,
        "loss": loss - given["J"],
        "multiplier_below": -sum(below),
    }


@EXAMPLES.by("the second optimizer step: scores are those of the new weights, the KL is no longer 0")
def second_step(example: Example) -> Found:
    given = example.values
    members = [answer(True, *given["old_right"]), answer(False, *given["old_wrong"])]
    new = np.concatenate([given["new_right"], given["new_wrong"]])
    return {"objective_1": -loss_and_gradients(DRPO, members)[0], "loss_2": loss_and_gradients(DRPO, members, new)[0]}


@EXAMPLES.by("one response of four has no score (convention)")
def unscored(example: Example) -> Found:
    """Lengths of one and two tokens get the weights of the example through a sharpness."""
    given = example.values
    sharpness = 1.0 / (8192 * np.log(given["w"][0] / given["w"][1]))
    right = [answer(True, s, length=n) for s, n in zip(given["s_right"], (1, 2), strict=True)]
    members = [*right, answer(False, *given["s_wrong"]), answer(None, -0.9)]
    loss, gradients = loss_and_gradients(with_loss(sharpness=float(sharpness)), members)
    assert gradients[-1] == 0
    return {"objective": -loss, "gradient": np.array([*(-np.array(gradients[:-1])), np.nan])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
