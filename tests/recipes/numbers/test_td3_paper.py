"""Worked examples of the paper of td3, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from case_files import rollouts
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from torch import nn

from agentrl_core import recipes

EXAMPLES = PaperExamples("td3")
ESTIMATES = ("estimate", "first_estimate", "second_estimate")
AFTER = ("first_estimate_after", "second_estimate_after")
ACTOR = recipes.TD3.replace(loss=recipes.TD3.chain("loss")[2])
TRAINED = 1
"""An iteration in which the policy is trained, counted from 0."""


def zeros(tokens: int, steps: int) -> dict[str, dict[str, list[float]]]:
    """Return estimates of 0 for all tokens and after all steps."""
    return {"token": dict.fromkeys(ESTIMATES, [0.0] * tokens), "step": dict.fromkeys(AFTER, [0.0] * steps)}


@EXAMPLES.by("targets of three transitions, one of which ends the episode")
def targets(example: Example) -> Found:
    """The first two transitions are turns of an episode; the third is cut off."""
    given = example.values
    members = [
        {"path": "1 | 3 ~ 9 | 3", "steps": [{"reward": reward} for reward in given["r"][:2].tolist()], "reward": 0},
        {
            "path": "1 | 3",
            "steps": [{"reward": float(given["r"][2]), "truncated": True}],
            "reward": 0,
            "status": "truncated",
        },
    ]
    columns = zeros(3, 3)
    for name, values in zip(("first", "second"), (given["Q1"], given["Q2"]), strict=True):
        columns["token"][f"{name}_estimate"] = [0.0, float(values[0]), 0.0]
        columns["step"][f"{name}_estimate_after"] = values.tolist()
    result = computed(recipes.TD3, ["token.return"], members=members, columns=columns)
    return {"target": result["token.return"]}


@EXAMPLES.by("both critics move to one target")
def critics(example: Example) -> Found:
    """The recipe's losses are half the squares."""
    given = example.values
    members = [
        {**member, "steps": [{"reward": reward}]}
        for member, reward in zip(answers([1, 1], [0, 0]), given["y"].tolist(), strict=True)
    ]
    outputs = {
        name: {"logprob": [-1.0, -1.0], "soft_value": (given[values] + 1.0).tolist()}
        for name, values in (("critic", "Q1"), ("second_critic", "Q2"))
    }
    names = [f"loss.{name}" for name in outputs]
    result = computed(recipes.TD3, names, members=members, columns=zeros(2, 2), **outputs)
    return {"loss": 2 * sum(result[name] for name in names)}


@EXAMPLES.by("the actor looks at the first critic")
def actor(example: Example) -> Found:
    """The stored tokens are the policy's own, of ratio 1."""
    columns = zeros(2, 2)
    columns["token"]["estimate"] = example.values["Q1"].tolist()
    columns["token"]["second_estimate"] = example.values["Q2"].tolist()
    result = computed(ACTOR, ["loss"], members=answers([1, 1], [0, 0]), columns=columns, number=TRAINED)
    return {"loss": result["loss"]}


@EXAMPLES.by("four steps: actor and targets move at the second and the fourth")
def four_steps(example: Example) -> Found:
    names = ("policy", "critic", "second_critic", "target_policy", "target_critic", "second_target")
    models = {name: nn.Linear(1, 1, bias=False).double() for name in names}
    for name in names[3:]:
        models[name].weight.data.fill_(float(example.values["target"]))
    columns = zeros(2, 2)
    moves, after = [], []
    for iteration, theta in enumerate(example.values["theta"].tolist()):
        batch = rollouts(answers([1, 1], [0, 0]), iteration)
        for level, values in columns.items():
            batch = batch.with_columns(level, **{name: np.array(each) for name, each in values.items()})
        updates = recipes.TD3.updates(recipes.TD3.credit(batch), models=models)
        trained = [update.model for update in updates]
        assert trained[:2] == ["critic", "second_critic"]
        moves.append("policy" in trained)
        for name in names[:3]:
            models[name].weight.data.fill_(theta)
        recipes.TD3.run_hooks(updates, **models)
        after.append([models[name].weight.item() for name in names[3:]])
    targets = np.array(after)
    np.testing.assert_array_equal(targets, targets[:, :1].repeat(3, axis=1))
    return {"target_after": targets[:, 0], "actor_moves": np.array(moves)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_the_loss_is_the_value_of_the_policy_and_not_of_who_sampled() -> None:
    """A stored token of either kind, weighted by how often it was sampled, gives - sum_a p(a) Q1(a)."""
    sampled, current, values = np.array([0.2, 0.8]), np.array([0.7, 0.3]), np.array([1.0, -2.0])
    losses = [
        computed(
            ACTOR,
            ["loss"],
            members=[{**answers([1], [0])[0], "logprobs": [float(np.log(sampled[kind]))]}],
            columns={**zeros(1, 1), "token": {**zeros(1, 1)["token"], "estimate": [values[kind]]}},
            policy={"logprob": [float(np.log(current[kind]))]},
            number=TRAINED,
        )["loss"][0]
        for kind in (0, 1)
    ]
    assert sampled @ losses == pytest.approx(-(current @ values), rel=1e-6)
