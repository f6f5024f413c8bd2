"""Worked examples of the paper of spark, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from common_examples import CommonExamples, advantages, given_advantages, plain_reward, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples
from riddles import RIGHT, WRONG, Riddles, solve

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.engine import Request
from agentrl_core.env import Task
from agentrl_core.recipes.spark import JudgeAndReflect

EXAMPLES = PaperExamples("spark")
CommonExamples(EXAMPLES, recipes.SPARK)
RECYCLED = recipes.SPARK.rollout
assert isinstance(RECYCLED, JudgeAndReflect)


class Named(Riddles):
    """Riddles with distinct questions."""

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        names = [f"{split} {number}" for number in range(start, start + count)]
        return [Task(name, f"[{name}] riddle?", "riddles", None, self.solution) for name in names]


def reflected(groups: Sequence[Sequence[float]]) -> list[float]:
    """Return the number of reflection items per member, for groups with these right and wrong members."""
    remaining_outcomes: dict[str, list[float]] = {}

    def speak(context: str, request: Request) -> str:
        del request
        if "A proposed answer" in context or "boxed" in context:
            return "\\boxed{yes}"
        name = context.split("[", 1)[1].split("]", 1)[0]
        if name not in remaining_outcomes:
            remaining_outcomes[name] = list(groups[len(remaining_outcomes)])
        return RIGHT if remaining_outcomes[name].pop(0) else WRONG

    size = len(groups[0])
    run = solve(recipes.SPARK, speak, world=Named(), tasks=len(groups), group_size=size)
    again = [row.prompt for row in run.drawn if "A proposed answer" in row.prompt]
    return [sum(f"[{name}]" in prompt for prompt in again) / size for name in remaining_outcomes]


@EXAMPLES.by("judge items of four prompts")
def items(example: Example) -> Found:
    """Groups that are not mixed may use any draw."""
    groups = [example.values[name] for name in "abcd"]
    draws = [draw or 0.99 for draw in example.values["draw"].tolist()]
    alone = np.array(
        [
            float(RECYCLED.judged_alone(int(group.sum()), int((1 - group).sum()), draw))
            for group, draw in zip(groups, draws, strict=True)
        ]
    )
    return {
        "pointwise": alone,
        "pairwise": 1 - alone,
        "reflection": reflected([group.tolist() for group in groups]),
    }


@EXAMPLES.by("advantages of a task group and of a judge group")
def groups_of_their_own(example: Example) -> Found:
    groups = [example.values[name].tolist() for name in ("task", "judge")]
    of_the_code = recipes.SPARK.replace(advantage=GroupRelative(eps=1e-9))
    task, judge = advantages(plain_reward(recipes.SPARK), *groups)
    task_of_the_code, judge_of_the_code = advantages(plain_reward(of_the_code), *groups)
    return {
        "task": task,
        "judge": judge,
        "task_of_the_code": task_of_the_code,
        "judge_of_the_code": judge_of_the_code,
    }


@EXAMPLES.by("loss, two optimizer steps")
def two_steps(example: Example) -> Found:
    losses = given_advantages(recipes.SPARK)
    old, second, advantage_values, reference = (example.values[name] for name in ("old", "second", "A", "ref"))
    return {
        f"{name}_loss": single_tokens(losses, old, now, advantage_values, reference_logprob=reference)["loss"]
        for name, now in (("first", old), ("second", second))
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
