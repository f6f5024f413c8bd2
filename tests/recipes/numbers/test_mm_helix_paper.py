"""Worked examples of the paper of mm_helix, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Where
from agentrl_core.recipes.mm_helix import SparseGate

EXAMPLES = PaperExamples("mm_helix")
WEIGHTED = recipes.MM_HELIX.replace(
    advantage=(
        GroupRelative(center="none", scale="none", where=Where(origin="generated")),
        recipes.MM_HELIX.advantage[1],
    )
)
"""The recipe with the advantages of an example as scores."""


@EXAMPLES.by("advantages of on-policy rollouts of two prompts")
def advantages(example: Example) -> Found:
    one, other = example.values["R_a"].tolist(), example.values["R_b"].tolist()
    members = [*answers([1] * 4, one, group="a"), *answers([1] * 3, other, group="b")]
    members.insert(4, {**answers([2], [1.0], origin="expert", unsampled=True)[0], "group": "a"})
    draw_advantages = computed(recipes.MM_HELIX, ["draw.advantage"], members=members)["draw.advantage"]
    assert draw_advantages[4] == 0
    return {"advantage_a_n_minus_1": draw_advantages[:4], "advantage_b_n_minus_1": draw_advantages[5:]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    members = answers([1] * 4, [*example.values["R"].tolist(), float("nan")])
    draw_advantages = computed(recipes.MM_HELIX, ["draw.advantage"], members=members)["draw.advantage"]
    return {
        "advantage": [*draw_advantages[:3], float("nan") if draw_advantages[3] == 0 else draw_advantages[3]]
    }  # 0: no loss is computed


def gates(successes: Value) -> Value:
    """Return the gate of tasks with these numbers of successes."""
    members = []
    for place, count in enumerate(successes.astype(int)):
        for member in range(3):
            members += answers([1], [0.0], group=f"{place}", success=member < count)
        members += answers([1], [1.0], group=f"{place}", success=True, origin="expert", unsampled=True)
    result = computed(recipes.MM_HELIX.replace(weight=SparseGate(successes=2)), ["draw.imitation"], members=members)
    return result["draw.imitation"].reshape(-1, 4)[:, 3]


@EXAMPLES.by("the gate of three prompts at R_hat = 2")
def gate(example: Example) -> Found:
    return {"gate": gates(example.values["successes"])}


@EXAMPLES.by("a second iteration: the gate follows the rollouts")
def later_gate(example: Example) -> Found:
    return {f"gate_{name}": gates(example.values[name]) for name in ("first", "second")}


def one_prompt(expert: Value, rewards: Value, lengths: Value, *, won: bool) -> dict[str, Any]:
    """Return an expert's tokens with these log-probs and rollouts at ratio 1."""
    return {
        "members": [
            *answers([len(expert)], [1.0], success=True, origin="expert", unsampled=True),
            *answers(lengths.astype(int).tolist(), rewards.tolist(), success=won),
        ],
        "policy": {"logprob": [*expert.tolist(), *[-1.0] * int(lengths.sum())]},
    }


@EXAMPLES.by("the loss by 1, 2 and 4")
def summed(example: Example) -> Found:
    values = [example.values[name] for name in ("expert", "A", "n")]
    off = computed(WEIGHTED, ["loss"], **one_prompt(values[0], 0 * values[1], values[2], won=False))
    on = computed(WEIGHTED, ["loss"], **one_prompt(*values, won=True))
    both = computed(WEIGHTED, ["loss"], **one_prompt(*values, won=False))
    return {"off_policy_loss": off["loss"], "on_policy_loss": on["loss"], "loss": both["loss"]}


@EXAMPLES.by("a closed gate leaves the RL loss alone")
def closed(example: Example) -> Found:
    del example
    prompt = one_prompt(np.array([-1.0]), np.array([1.5, -0.5]), np.array([2, 6]), won=True)
    return {"loss": computed(WEIGHTED, ["loss"], **prompt)["loss"]}


@EXAMPLES.by("clipping at 0.2, since the paper gives no number")
def clipped(example: Example) -> Found:
    members = answers([1] * 4, example.values["A"].tolist(), success=True)
    return {
        "loss": computed(WEIGHTED, ["loss"], members=members, policy={"logprob": example.values["new"].tolist()})[
            "loss"
        ]
    }


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    members = answers([1] * 3, example.values["A"].tolist(), success=True)
    policies = {step: {"logprob": example.values[step].tolist()} for step in ("first", "second")}
    results = {
        step: computed(WEIGHTED, ["loss", "gradient.logprob"], members=members, policy=policy)
        for step, policy in policies.items()
    }
    return {
        "first_loss": results["first"]["loss"],
        "second_loss": results["second"]["loss"],
        "second_has_gradient": results["second"]["gradient.logprob"] != 0,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
