"""Worked examples of the paper of fathom, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from pools import Story

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.reward import CombineReward, OutcomeScore

EXAMPLES = PaperExamples("fathom")
PAID = recipes.FATHOM.replace(reward=OutcomeScore())
"""The recipe with rewards from the environment, as in stage 1."""
WEIGHTED = PAID.replace(advantage=GroupRelative(center="none", scale="none"), weight=None, minibatches=1)
"""The recipe with the advantages of an example as scores, and one optimizer step."""


@EXAMPLES.by("rewards of stage 1 and advantages")
def first_stage(example: Example) -> Found:
    members = [
        {**answer, "rewards": {"format": text_format}}
        for answer, text_format in zip(
            answers([1] * 5, (0.9 * example.values["answer"]).tolist()), example.values["format"], strict=True
        )
    ]
    recipe = PAID.replace(reward=(OutcomeScore(), CombineReward(column="reward.format", coefficient=0.1)))
    result = computed(recipe, ["draw.score", "draw.advantage"], members=members)
    return {"reward": result["draw.score"], "advantage": result["draw.advantage"]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    members = answers([1] * 4, [*example.values["R"].tolist(), float("nan")])
    advantages = computed(PAID, ["draw.advantage"], members=members)["draw.advantage"]
    return {
        "advantage": [*advantages[:3], float("nan") if advantages[3] == 0 else advantages[3]]
    }  # 0: no loss is computed


@EXAMPLES.by("rewards of stage 2")
def second_stage(example: Example) -> Found:
    calls = float(example.values["T"])

    def searched(success: bool, searches: tuple[int, int], queries: tuple[int, int]) -> dict[str, Any]:
        names = ("searches_unique", "searches_redundant", "queries_unique", "queries_redundant")
        tallies = dict(zip(names, (*searches, *queries), strict=True))
        return {
            **answers([1], [float(success)])[0],
            "success": success,
            "rewards": {"tool_calls": calls, "format": 1} | tallies,
        }

    members = [
        searched(True, (3, 2), (4, 1)),
        searched(True, (1, 7), (1, 0)),
        searched(False, (5, 1), (4, 0)),
        searched(False, (1, 3), (0, 0)),
    ]
    names = ("right", "right_redundant", "wrong", "wrong_redundant")
    return dict(zip(names, computed(recipes.FATHOM, ["draw.score"], members=members)["draw.score"], strict=True))


@EXAMPLES.by("scaling in a batch of four groups, two of them live")
def scaled(example: Example) -> Found:
    members = [
        {**answer, "group": group}
        for group, rewards in (("a", example.values["A"]), ("b", [1, 0]), ("c", [0, 0]), ("d", [1, 1]))
        for answer in answers([1] * len(rewards), [float(reward) for reward in rewards])
    ]
    result = computed(
        WEIGHTED.replace(weight=recipes.FATHOM.weight), ["draw.advantage", "draw.weight"], members=members
    )
    return {"advantage": (result["draw.advantage"] * result["draw.weight"])[:4]}


@EXAMPLES.by("an all-failed group takes its stored success")
def replaced(example: Example) -> Found:
    rewards = example.values["before"].tolist()
    inject = recipes.FATHOM.replay
    assert not inject.when.best_at_most < max(rewards)
    assert float(example.values["stored"]) > inject.memory.where.above
    rewards[1] = float(example.values["stored"])
    result = computed(PAID, ["draw.score", "draw.advantage"], members=answers([1] * 3, rewards))
    return {"rewards": result["draw.score"], "advantage": result["draw.advantage"]}


@EXAMPLES.by("pruning")
def pruned(example: Example) -> Found:
    story, pool = Story(), recipes.FATHOM.select.pool
    solved = {
        place: [1.0] * int(count) + [0.0] * (5 - int(count)) for place, count in enumerate(example.values["solved"])
    }
    state = pool.next(pool.initial_state(), story.visits(0, solved), np.arange(3), epoch=1)
    return {"keep": ~state["out"]}


@EXAMPLES.by("two rollouts of two turns with tool tokens")
def own_tokens(example: Example) -> Found:
    members = [
        {"path": "1 | 3*6", "reward": reward, "trainable": example.values[mask].astype(int).tolist()}
        for reward, mask in zip(example.values["A"].tolist(), ("mask_a", "mask_b"), strict=True)
    ]
    result = computed(WEIGHTED, ["loss", "gradient.logprob"], members=members)
    weights = -result["gradient.logprob"][[0, 6]] / example.values["A"]
    return {"loss": result["loss"], "token_weight_a": weights[0], "token_weight_b": weights[1]}


def clipped(advantages: Value, log_probs: Value) -> Any:
    """Return the loss and its gradient."""
    members = answers([1] * len(advantages), advantages.tolist())
    return computed(WEIGHTED, ["loss", "gradient.logprob"], members=members, policy={"logprob": log_probs.tolist()})


@EXAMPLES.by("clipping at 0.2, since the paper gives no number")
def off_policy(example: Example) -> Found:
    return {"loss": clipped(example.values["A"], example.values["new"])["loss"]}


@EXAMPLES.by("the second optimizer step of a batch clips")
def later_step(example: Example) -> Found:
    first, second = (clipped(example.values["A"], example.values[step]) for step in ("first", "second"))
    return {
        "first_loss": first["loss"],
        "second_loss": second["loss"],
        "second_has_gradient": second["gradient.logprob"] != 0,
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_a_batch_of_32_prompts_is_two_steps_of_16() -> None:
    assert recipes.FATHOM.minibatches == 32 // 16
