"""Worked examples of the paper of data_mind, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Where
from agentrl_core.loss import Clip, Policy

EXAMPLES = PaperExamples("data_mind")
WEIGHTED = recipes.DATA_MIND.replace(advantage=(GroupRelative(center="none", scale="none"),), minibatches=1)
"""The recipe with the advantages of an example as scores, and one optimizer step."""


def imitated(experts: Sequence[Value], **more: Any) -> dict[str, Any]:
    """Return experts' draws whose tokens have these log-probs."""
    return {
        "members": answers(
            [len(each) for each in experts], [1.0] * len(experts), origin="expert", unsampled=True, **more
        ),
        "policy": {"logprob": np.concatenate(experts).tolist()},
    }


def weighed(gamma: float) -> Any:
    """Return the recipe at a weight of the SFT loss."""
    sft, rl = gamma, 1.0 - gamma
    loss = recipes.DATA_MIND.loss
    return WEIGHTED.replace(
        loss=type(loss)(loss.first, loss.second, rl, sft, first_where=loss.first_where, second_where=loss.second_where)
    )


@EXAMPLES.by("advantages of a mixed group")
def data_mind_advantages(example: Example) -> Found:
    members = answers([1] * 4, example.values["R"].tolist(), success=True)
    return {
        "advantage_with_n_minus_1": computed(recipes.DATA_MIND, ["draw.advantage"], members=members)["draw.advantage"]
    }


@EXAMPLES.by("one rollout of four has no score (convention)")
def data_mind_unscored(example: Example) -> Found:
    members = answers([1] * 4, [*example.values["R"].tolist(), float("nan")], success=True)
    advantages = computed(recipes.DATA_MIND, ["draw.advantage"], members=members)["draw.advantage"]
    return {
        "advantage": [*advantages[:3], float("nan") if advantages[3] == 0 else advantages[3]]
    }  # 0: no loss is computed


@EXAMPLES.by("the RL loss is one token mean, with tool tokens out")
def data_mind_tokens(example: Example) -> Found:
    masks = (example.values["mask_a"].astype(int).tolist(), example.values["mask_b"].astype(int).tolist())
    members = [
        {"path": "1 | 3*6", "reward": reward, "success": reward > 0, "trainable": mask}
        for reward, mask in zip(example.values["A"].tolist(), masks, strict=True)
    ]
    return {"loss": computed(weighed(0.0), ["loss"], members=members)["loss"]}


@EXAMPLES.by("the sum of both losses, each over its own rows")
def data_mind_sum(example: Example) -> Found:
    experts = imitated([example.values["expert_a"], example.values["expert_b"]])
    rollouts = answers([2, 6], [-1.0, 0.0], success=True)
    rollouts[1]["success"] = False
    experts["members"] += rollouts
    experts["policy"]["logprob"] += [-1.0] * 8
    sft = computed(weighed(1.0), ["loss"], **experts)["loss"]
    return {
        "sft_loss": sft,
        "loss": computed(weighed(0.9), ["loss"], **experts)["loss"],  # - (-1) * 2 tokens of 8: the 0.25 of the example
    }


@EXAMPLES.by("a group of equal rewards has only its SFT loss")
def data_mind_dropped(example: Example) -> Found:
    del example
    rollouts = answers([2, 6], [-1.0, 0.0], success=True)
    rollouts[1]["success"] = False
    failed = answers([5, 3], [-1.0, 0.0], success=False, group="failed")
    both = imitated([[-2.0], [-1.0]])
    one, other = both["members"]
    both["members"] = [one, *rollouts, other | {"group": "failed"}, *failed]
    both["policy"]["logprob"] = [-2.0, *[-1.0] * 17]
    return {"loss": computed(weighed(0.5), ["loss"], **both)["loss"]}


@EXAMPLES.by("a trajectory with a void turn leaves the loss, not the group")
def data_mind_void(example: Example) -> Found:
    members = answers(example.values["n"].astype(int).tolist(), example.values["A"].tolist(), success=True)
    members[1] |= {"success": False, "steps": [{"flags": ["void"]}]}
    return {"loss": computed(weighed(0.0), ["loss"], members=members)["loss"]}


@EXAMPLES.by("the weight over a run of four steps")
def data_mind_schedule(example: Example) -> Found:
    loss = recipes.DATA_MIND.loss
    steps = (example.values["t"] / 4 * loss.second_coefficient.iterations).astype(int)
    at = [recipes.DATA_MIND.at(int(step)).loss for step in steps]
    np.testing.assert_allclose([each.first_coefficient + each.second_coefficient for each in at], 1.0)
    return {"gamma": [each.second_coefficient for each in at]}


@EXAMPLES.by("clipping with the DAPO paper's range, since this one gives none")
def data_mind_clip(example: Example) -> Found:
    members = answers([1] * 4, example.values["A"].tolist(), success=True)
    members[-1]["success"] = False
    assert recipes.DATA_MIND.loss.first == Policy(clip=Clip(0.2, 0.28))
    assert recipes.DATA_MIND.loss.first_where == Where(origin="generated")
    result = computed(weighed(0.0), ["loss"], members=members, policy={"logprob": example.values["new"].tolist()})
    return {"loss": result["loss"]}


@EXAMPLES.by("the second optimizer step of a batch clips")
def data_mind_steps(example: Example) -> Found:
    members = answers([1] * 3, example.values["A"].tolist(), success=True)
    members[-1]["success"] = False
    results = {}
    for step in ("first", "second"):
        policy = {"logprob": example.values[step].tolist()}
        numbers = computed(weighed(0.0), ["loss", "gradient.logprob"], members=members, policy=policy)
        results[f"{step}_loss"] = numbers["loss"]
        results[f"{step}_has_gradient"] = numbers["gradient.logprob"] != 0
    del results["first_has_gradient"]
    return results


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
