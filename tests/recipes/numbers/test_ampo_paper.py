"""Worked examples of the paper of ampo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from riddles import RIGHT, WRONG, solve

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.engine import Request
from agentrl_core.loss import Clip, Expert, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.ampo import TeacherReplacement
from agentrl_core.rollout import RoundResult
from agentrl_core.weight import ExpertMask

EXAMPLES = PaperExamples("ampo")
SCRIPT = recipes.AMPO.replace(
    advantage=GroupRelative(scale="none"),
    weight=ExpertMask(),
    loss=Policy(clip=Clip(0.2, 0.2, 10.0), expert=Expert(0.1), aggregate="constant", constant=8192.0, entropy=0.001),
)


def triggers(scores: Value) -> bool:
    """Return whether a group of these scores requests its teachers."""
    return not recipes.AMPO.rollout.solved(RoundResult([None] * len(scores), scores)).any()


def credited(*members: Mapping[str, Any], recipe: Recipe = recipes.AMPO) -> Found:
    """Return scores and advantages of a group."""
    group = [{"path": "1 | 3", **member} for member in members]
    tokens = {"recomputed_logprob": [-1.0] * len(group)}
    return dict(computed(recipe, ["draw.score", "draw.advantage"], members=group, columns={"token": tokens}))


@EXAMPLES.by("a failed group of five gets two of three traces")
def failed(example: Example) -> Found:
    """Of three teachers, the first and the third give the clearest traces."""
    clear = example.expect["comprehension_of_the_code"].tolist()
    seeds: list[int] = []

    def speak(context: str, request: Request) -> str:
        del context
        seeds.append(request.seed)
        return WRONG if len(seeds) <= 5 else f"{len(seeds) - 5} {RIGHT}"

    recipe = recipes.AMPO.replace(rollout=TeacherReplacement(teachers=("a", "b", "c")))
    run = solve(recipe, speak, group_size=5, models={"comprehension": lambda paths: clear[: len(paths)]})
    traces = sorted(row.actions[0] for row in run.drawn if row.actions[0] != WRONG)
    assert traces == [f"1 {RIGHT}", f"3 {RIGHT}"]
    original_rewards, teacher = example.values["R"].tolist(), example.values["teacher"].tolist()
    rewards = [original_rewards[0], teacher[0], original_rewards[2], teacher[1], original_rewards[4]]
    members = [
        {"reward": reward, "unsampled": bool(place % 2), "facts": {"taught": place % 2}}
        for place, reward in enumerate(rewards)
    ]
    result = credited(*members)
    return {
        "trigger": triggers(example.values["R"]),
        "k": len(traces),
        "reward": result["draw.score"],
        "advantage": result["draw.advantage"],
        "advantage_of_the_script": credited(*members, recipe=SCRIPT)["draw.advantage"],
    }


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    members = [{"reward": reward, "facts": {"taught": 0}} for reward in example.values["R"].tolist()]
    advantages = credited(*members, {"facts": {"taught": 0}})["draw.advantage"]
    assert advantages[-1] == 0
    trigger = triggers(np.array([*example.values["R"], np.nan]))
    return {"trigger": trigger, "advantage": np.append(advantages[:-1], np.nan)}


def mixed(example: Example, teachers: list[Value], old: Value, new: Value, on: float, *, script: bool = False) -> Found:
    """Return the loss and its gradient; the script sums over rows instead of averaging, so the gradient is times L."""
    given, rows = example.values, (len(teachers) + 1 if script else 1)
    longest = float(given["L"]) if script else 1.0
    losses = given_advantages(SCRIPT, constant=longest) if script else given_advantages(recipes.AMPO)
    teacher_members = answers(
        [len(each) for each in teachers], [float(given["A_teacher"])] * len(teachers), unsampled=True
    )
    members = [*teacher_members, {**answers([len(new)], [on])[0], "logprobs": old.tolist()}]
    result = computed(
        losses.replace(weight=(SCRIPT if script else recipes.AMPO).weight),
        ["loss", "gradient.logprob"],
        members=[{**member, "group": "one", "facts": {"taught": "unsampled" in member}} for member in members],
        policy={"logprob": np.concatenate([*teachers, new]).tolist()},
    )
    return {"loss": rows * result["loss"], "gradient": rows * longest * result["gradient.logprob"]}


@EXAMPLES.by("mixed loss of a teacher row of three tokens, a short one and an on-policy row")
def three_rows(example: Example) -> Found:
    given = example.values
    rows = [given["logp_long"], np.ravel(given["logp_short"])], given["old"], given["new"], float(given["A_on"])
    result, script = mixed(example, *rows), mixed(example, *rows, script=True)
    return {
        "loss": script["loss"],
        "coefficient_of_grad_log_pi": script["gradient"][:3],
        "rows_weighed_alike_without_the_teachers_probability": result["loss"],
    }


@EXAMPLES.by("the second optimizer step clips on-policy tokens and never the teacher's")
def second_step(example: Example) -> Found:
    assert recipes.AMPO.minibatches == 2
    given = example.values
    results: Found = {}
    for place, (step, name) in enumerate((("first", "old"), ("second", "second"))):
        rows = [np.log(given["p"][[place]])], given["old"], given[name], float(given["A_on"])
        paper = mixed(example, *rows)
        results |= {
            f"{step}_loss": mixed(example, *rows, script=True)["loss"],
            f"{step}_loss_of_equation_7": paper["loss"],
            "on_policy_token_has_gradient": paper["gradient"][1:] != 0,
        }
        assert paper["gradient"][0] != 0, "the teacher's token moves on"
    return results


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
