"""Worked examples of the paper of dyna_mind, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import RIGHT, WRONG, Riddle, Riddles, solve

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.env import StepResult, Task

EXAMPLES = PaperExamples("dyna_mind")
RECIPE = recipes.DYNA_MIND


def group(values: Mapping[str, Value]) -> tuple[Value, Value]:
    """Return advantages of the ordinary and of the refined rollouts of a group."""
    plain, refined = (np.ravel(values[name]).tolist() for name in ("R", "R_refine"))
    members = [{"path": "1 | 3", "reward": reward, "success": False, "facts": {"refined": 0}} for reward in plain] + [
        {"path": "1 | 4", "reward": reward, "success": bool(right), "facts": {"refined": 1}}
        for reward, right in zip(refined, np.ravel(values["right"]), strict=True)
    ]
    draw_advantages = computed(RECIPE, ["draw.advantage"], members=members)["draw.advantage"]
    one, other = np.split(draw_advantages, [len(plain)])
    return one, other


def ordinary(rewards: Sequence[float]) -> Value:
    return advantages(RECIPE, rewards, success=False, facts={"refined": 0})[0]


@EXAMPLES.by("returns of five ordinary trajectories of unequal length")
def returns(example: Example) -> Found:
    return {"advantage_n_minus_1": ordinary(example.values["R"])}


@EXAMPLES.by("refined trajectories beat both means or get nothing")
@EXAMPLES.by("refined trajectories that all succeed alike get nothing")
@EXAMPLES.by("a refined trajectory above the mean, but wrong")
def refined(example: Example) -> Found:
    return {"advantage": group(example.values)[1]}


class Counted(Riddles):
    """Riddles that count the steps of all episodes, including those of copies."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def reset(self, task: Task, seed: int) -> Riddle:
        del seed
        world = self

        class Counting(Riddle):
            def step(self, action: str) -> StepResult:
                world.steps += 1
                return super().step(action)

        return Counting(task)


def cost(actions: int) -> tuple[int, int]:
    """Return the environment steps and responses that a refined rollout of one turn adds to a group of one."""

    def speak(context: str, request: Request) -> str:
        del request
        if "leads to" in context:
            return RIGHT
        return WRONG if "assistant\n<plan>" in context else "<plan>" + "look\n" * actions + "</plan>"

    spent = []
    for size in (1, 2):
        world = Counted()
        run = solve(RECIPE, speak, world=world, group_size=size)
        assert sum(run.fact("refined")) == size - 1
        spent.append(np.array([world.steps, run.num_requests]))
    steps, responses = (spent[1] - spent[0]).tolist()
    return steps, responses


@EXAMPLES.by("cost of one refined step with a plan of three actions")
def refined_step(example: Example) -> Found:
    steps, responses = cost(int(example.values["plan"]))
    return {"environment_steps": steps, "responses": responses}


def test_a_plan_is_run_up_to_its_fifth_action() -> None:
    assert cost(7) == (5 + 1, 2)


@EXAMPLES.by("two phases: refined first, then ordinary, from the new weights")
def phases(example: Example) -> Found:
    plain, better = group(example.values)
    assert not plain.any(), "ordinary ones beside refined ones are not trained"
    return {"refined": better, "ordinary": ordinary(example.values["R_next"])}


@EXAMPLES.by("a group of one")
def alone(example: Example) -> Found:
    plain, better = group(example.values)
    assert not plain.any()
    return {"advantage_of_refined": better}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage": ordinary([*example.values["R"].tolist(), np.nan])}


@EXAMPLES.by("the second optimizer step of a batch")
def second_step(example: Example) -> Found:
    given = example.values
    old = np.full(len(given["A"]), -1.0)
    result = single_tokens(given_advantages(RECIPE), old, old + np.log(given["second"]), given["A"])
    return {"objective": -result["loss"], "has_gradient": result["gradient.logprob"] != 0}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
