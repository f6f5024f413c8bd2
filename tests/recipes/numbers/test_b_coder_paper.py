"""Worked examples of the paper of b_coder, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.component import Where
from agentrl_core.recipe import Recipe

EXAMPLES = PaperExamples("b_coder")
SECOND, FIRST = recipes.B_CODER.chain("loss")


def scaled(alpha: float) -> Recipe:
    """Return the recipe with this alpha and the discount of the examples."""
    loss = replace(SECOND.loss, first=replace(SECOND.loss.first, scale=alpha))
    return recipes.B_CODER.replace(
        advantage=replace(recipes.B_CODER.advantage, gamma=0.9), loss=(replace(SECOND, loss=loss), FIRST)
    )


def fitted(recipe: Recipe, gap: Value, value: Value, proposed: Value, reward: float, **more: Any) -> dict[str, Value]:
    """Return loss, target and Q of the tokens of a program that the policy wrote.

    Args:
        recipe: the recipe that computes them.
        gap: logits minus the largest ones.
        value: outputs of the value head.
        proposed: the bootstrap of each token.
        reward: reward of the program.
        more: options of the iteration, such as its stage.
    """
    logprob = -4.0 + np.asarray(gap)
    members = answers([len(value)], [reward])
    policy = {"logprob": logprob.tolist(), "value": list(value), "max_logprob": [-4.0] * len(value)}
    columns = {"token": {"value": list(proposed), **more.pop("token", {})}}
    names = ["loss", "gradient.value", *(() if more else ["token.return"])]
    result = dict(computed(recipe, names, members=members, columns=columns, policy=policy, **more))
    target = result.get("token.return", columns["token"].get("return"))
    share = len(value) / (1.0 if more else 2.0)  # d mean (Q - y)^2 / dV = 2 (Q - y) / n; the first stage has a half
    return {"loss": result["loss"], "target": target, "Q": target + share * result["gradient.value"]}


@EXAMPLES.by("targets of a program of three tokens")
def targets(example: Example) -> Found:
    given = example.values
    recipe = scaled(float(given["alpha"]))
    return fitted(recipe, given["logit"] - given["largest"], given["V"], given["Q_q"], float(given["r"]))


@EXAMPLES.by("programs of two tokens and of one")
def uneven(example: Example) -> Found:
    """The bootstrap of the first program's second token gives the target of its first."""
    given = example.values
    targets, q_values = (np.concatenate([given[f"{name}_a"], given[f"{name}_b"]]) for name in ("y", "Q"))
    loss = computed(
        scaled(1.0),
        ["loss"],
        members=[
            {**member, "group": f"{place}"}
            for place, member in enumerate(answers([2, 1], [float(targets[1]), float(targets[2])]))
        ],
        columns={"token": {"value": [0.0, float(targets[0]) / 0.9, 0.0]}},
        policy={"logprob": [-1.0] * 3, "value": q_values.tolist(), "max_logprob": [-1.0] * 3},
    )["loss"]
    return {"loss": loss}


@EXAMPLES.by("the policy does not see V")
def policy(example: Example) -> Found:
    """The softmax of the Q of three actions in one state."""
    logits, alpha = example.values["l"], float(example.values["alpha"])
    q_values = fitted(scaled(alpha), logits - logits.max(), np.full(3, example.values["V"]), np.zeros(3), 0.0)["Q"]
    raised = np.exp(q_values / alpha)
    return {"policy": raised / raised.sum()}


@EXAMPLES.by("both stages and two optimizer steps")
def stages(example: Example) -> Found:
    given, recipe = example.values, scaled(1.0)
    head, next_value = given["V_phi"], float(given["Q_next"])
    proposed, end = [0.0, next_value], float(given["r_end"])
    target = fitted(recipe, given["A_checkpoint"], head, proposed, end)["target"]
    first = fitted(
        recipe, given["A_checkpoint"], head, proposed, end, stage="warm_start", token={"return": target.tolist()}
    )
    # The example gives the human program no temporal difference, so the recipe uses that of the other one.
    alone = replace(SECOND.loss, first_where=Where(origin="generated"))
    human, count = given["A_human"], len(given["A_human"])
    likely = -float(given["ce"]) / count
    result = computed(
        recipe.replace(loss=alone),
        ["loss"],
        members=[*answers([2], [end]), *answers([count], [1.0], origin="expert", unsampled=True)],
        columns={"token": {"value": [*proposed, *[0.0] * count]}},
        policy={
            "logprob": [*(given["A_theta"] - 4.0), *[likely] * count],
            "value": [*(given["V_r"] + head), *[0.0] * count],
            "max_logprob": [*[-4.0] * 2, *(likely - human)],
        },
    )
    return {
        "loss_of_first_stage": 2.0 * first["loss"],
        "Q_at_the_start_of_second_stage": first["Q"],
        "loss_of_second_stage": result["loss"],
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
