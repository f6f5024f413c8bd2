"""Worked examples of the paper of bq_nco, computed by the recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import RIGHT, Riddles, in_turn, solve

from agentrl_core import recipes
from agentrl_core.env import StepResult, Task
from agentrl_core.exceptions import InvalidInputError

EXAMPLES = PaperExamples("bq_nco")
Render = Callable[[Sequence[str]], str]


class Problem:
    """An episode that shows the rest of the problem after the actions so far."""

    def __init__(self, render: Render) -> None:
        self.render = render
        self.done: list[str] = []
        self.observation = render(self.done)

    def step(self, action: str) -> StepResult:
        self.done.append(action)
        return StepResult(self.render(self.done))

    def state_key(self) -> str:
        return self.render(self.done)


class Problems(Riddles):
    """Tasks with one solution each."""

    def __init__(self, render: Render, solution: Sequence[str]) -> None:
        super().__init__(solution)
        self.render = render

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        return [replace(task, question=self.render([])) for task in super().tasks(count, split=split, start=start)]

    def reset(self, task: Task, seed: int) -> Problem:
        del task, seed
        return Problem(self.render)


def last_step(render: Render, *solution: str) -> str:
    """Return the context in which the last action of a solution is trained, without the prompts of other steps."""
    run = solve(recipes.BQ_NCO, in_turn("unasked"), world=Problems(render, solution), group_size=24)
    assert run.num_requests == 0
    texts = {row.text for row in run.drawn if row.trained.startswith(solution[-1])}
    assert {row.trained for row in run.drawn} == {f"{action}<|im_end|>" for action in solution}
    [context] = texts
    return context.split("<|im_start|>user\n", 1)[1].split("<|im_end|>", 1)[0]


@EXAMPLES.by("two orders, one state")
def knapsack(example: Example) -> Found:
    weights, capacity = example.values["weight"], float(example.values["capacity"])

    def render(done: Sequence[str]) -> str:
        remaining_capacity = capacity - sum(weights[int(item)] for item in done)
        fits = [item for item in range(len(weights)) if str(item) not in done and weights[item] <= remaining_capacity]
        return f"{remaining_capacity:g} {fits}"

    one, other = last_step(render, "0", "2", "1"), last_step(render, "2", "0", "1")
    return {
        "capacity_a": np.array(float(one.split()[0])),
        "capacity_b": np.array(float(other.split()[0])),
        "fits": np.array([float(item in one.partition(" ")[2]) for item in "13"]),
    }


@EXAMPLES.by("a tour's state forgets the way")
def tour(example: Example) -> Found:
    places = example.values["x"]

    def render(done: Sequence[str]) -> str:
        at = places[int(done[-1])] if done else places[0]
        return f"{at:g} {places[0]:g} {sorted({'1', '2', '3'} - set(done))}"

    results = [last_step(render, *way, "0").split() for way in (("1", "3", "2"), ("3", "1", "2"))]
    rest_a, rest_b = (np.array(abs(float(at) - float(end))) for at, end, _ in results)
    return {"rest_of_a": rest_a, "rest_of_b": rest_b}


@EXAMPLES.by("capacity of a vehicle with and without the depot")
def vehicle(example: Example) -> Found:
    given = {name: float(value) for name, value in example.values.items()}

    def render(done: Sequence[str]) -> str:
        before = {"direct": given["left"], "depot": given["full"]}
        return f"{before[done[0]] - given['demand'] if done else given['left']:g}"

    return {
        name: np.array(float(last_step(render, way, "end")))
        for name, way in (("direct", "direct"), ("via_depot", "depot"))
    }


def imitation_loss(scores: Value, right: int) -> Value:
    """Return the loss of the right action among several one-token actions with these scores."""
    logprob = scores[right] - np.log(np.exp(scores).sum())
    members = [{"path": "1 | 3", "reward": 1, "unsampled": True}]
    return computed(recipes.BQ_NCO, ["loss"], members=members, policy={"logprob": [float(logprob)]})["loss"]


@EXAMPLES.by("the next node of a tour")
def next_node(example: Example) -> Found:
    return {"loss": imitation_loss(example.values["scores"], 1)}


@EXAMPLES.by("a second step has a residual problem of another length")
def two_steps(example: Example) -> Found:
    return {
        f"loss_{place}": imitation_loss(example.values[name], 0)
        for place, name in enumerate(("first", "second"), start=1)
    }


def test_a_problem_that_ends_early_trains_nothing_after_its_end() -> None:
    run = solve(recipes.BQ_NCO, in_turn("unasked"), world=Riddles((RIGHT, "late")), group_size=12)
    assert {(row.trained, row.status) for row in run.drawn} == {(f"{RIGHT}<|im_end|>", "finished"), ("", "finished")}


def test_a_task_without_a_solution_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"task 'train \d+' has no solution; give its actions as Task"):
        solve(recipes.BQ_NCO, in_turn("unasked"), world=Riddles(()), group_size=2)


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
