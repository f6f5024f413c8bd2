"""Worked examples of the paper of t_ppo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("t_ppo")
T_PPO = recipes.T_PPO
CUT_OFF, GAE, SCORE = T_PPO.chain("advantage")
_, POLICY = T_PPO.chain("loss")


def response(windows: Sequence[int], reward: float | None = None, *, first: int = 0, ends: bool = True) -> Any:
    """Return a response of windows of these lengths, each under the next policy version, which ends or not.

    An unfinished response has no reward yet: its score is 0 and its success is unknown.
    """
    member = {
        "group": f"{windows}{reward}{ends}",
        "path": "1 " + " ".join(f"| 3*{length}" for length in windows),
        "policy_version": list(range(first, first + len(windows))),
        "status": "finished" if ends else "truncated",
    }
    if not ends:
        return {**member, "reward": 0.0}
    return {**member, "success": True, **({} if reward is None else {"reward": reward})}


def numbers_of(recipe: Recipe, names: Sequence[str], members: Sequence[Any], values: Value) -> Mapping[str, Value]:
    """Return numbers of responses with these values of the critic, now equal to before."""
    known = [float("nan") if member["status"] == "truncated" else 1.0 for member in members]
    columns = {"draw": {"success": known}, "token": {"value": values.tolist()}}
    return computed(recipe, names, members=members, columns=columns, critic={"value": values.tolist()})


def credit(members: Sequence[Any], values: Value, **options: float) -> Value:
    """Return advantages of tokens, with another discount or lambda."""
    recipe = T_PPO.replace(advantage=(CUT_OFF, replace(GAE, **options), SCORE))
    return numbers_of(recipe, ["token.advantage"], members, values)["token.advantage"]


@EXAMPLES.by("an unfinished window of three tokens, a finished response of two")
def windows(example: Example) -> Found:
    given = example.values
    members = [response([3], ends=False), response([2], float(given["R"]))]
    values = np.concatenate([given["V"], given["W"]])
    advantages = credit(members, values, gamma=float(given["gamma"]), lam=float(given["lambda_"]))
    return {"unfinished": advantages[:3], "finished": advantages[3:]}


@EXAMPLES.by("an untrained value model gives no signal before the end")
def untrained(example: Example) -> Found:
    """A token without a score has advantage 0 and no weight; it is `nan` in the example."""
    given = example.values
    members = [response([2], ends=False), response([2], float(given["R"])), response([2])]
    advantages = credit(members, np.tile(given["V"], 3), lam=0.8)
    assert not advantages[4:].any()
    return {"unfinished_finished_unscored": [*advantages[:4], np.nan, np.nan]}


@EXAMPLES.by("masks over three iterations")
def masks(example: Example) -> Found:  # noqa: ARG001 - the numbers are in its text
    """Kept tokens train the policy; tokens with a gradient by their value train the critic."""
    iterations = [
        ([2, 2], [response([2], ends=False), response([2], 1.0)]),
        ([4, 2], [response([2, 2], ends=False), response([2], first=1, ends=False)]),
        ([5, 3], [response([2, 2, 1], 1.0), response([2, 1], first=1, ends=False)]),
    ]
    policy_masks, trained, valued = {}, [], []
    for number, (lengths, members) in enumerate(iterations, start=1):
        numbers = numbers_of(T_PPO.replace(minibatches=1), ["token.keep", "loss"], members, np.full(sum(lengths), 0.5))
        is_kept = numbers["token.keep"] > 0
        policy_masks[f"policy_mask_a_{number}"] = np.resize(is_kept[: lengths[0]], 5) * (np.arange(5) < lengths[0])
        trained.append(int(is_kept.sum()))
        valued.append(int(np.count_nonzero(numbers.get("gradient.critic.value", 0.0))))  # none if no response ended
    return {
        **policy_masks,
        "policy_tokens_by_iteration": np.array(trained),
        "value_tokens_by_iteration": np.array(valued),
    }


@EXAMPLES.by("value target of a finished response of two windows")
def target(example: Example) -> Found:
    members = [response([2, 1], float(example.values["R"]))]
    numbers = numbers_of(T_PPO, ["token.return", "loss.critic"], members, example.values["V"])
    return {"target": numbers["token.return"], "value_loss": numbers["loss.critic"]}


@EXAMPLES.by("two optimizer steps on a window")
def two_steps(example: Example) -> Found:
    given = example.values
    recipe = T_PPO.replace(
        advantage=GroupRelative(column="given", level="token", center="none", scale="none"), loss=POLICY
    )
    before = int((given["mask"] == 0).sum())
    member = {**response([before, len(given["A"]) - before], 0.0), "logprobs": given["old"].tolist()}
    losses = {
        f"{name}_loss": computed(
            recipe,
            ["loss"],
            members=[member],
            columns={"token": {"given": given["A"].tolist()}},
            policy={"logprob": logprobs.tolist()},
        )["loss"]
        for name, logprobs in (("first", given["old"]), ("second", given["second"]))
    }
    return dict(losses)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_neither_discount_nor_another_lambda() -> None:
    assert (GAE.gamma, GAE.lam) == (1.0, 0.95)
