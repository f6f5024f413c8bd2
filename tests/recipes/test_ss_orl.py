"""Recordings with and without actions, traced by hand."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from riddles import check_resumes, solve

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.env import StepResult, Task
from agentrl_core.recipes.ss_orl import ImputedActions

OBSERVATIONS = ("a door", "a hall", "a key")
ACTIONS = ("open it", "walk on", "take it")


class Recordings:
    """Tasks of which every other one is a recording with its actions; all show the same observations."""

    runs = "inline"

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        solutions: Sequence[tuple[str, ...]] = (ACTIONS, ())
        return [
            Task(f"{split} {number}", "?", "recorded", None, solutions[number % 2])
            for number in range(start, start + count)
        ]

    def reset(self, task: Task, seed: int) -> Any:
        del task, seed
        actions: list[str] = []

        def step(action: str) -> StepResult:
            actions.append(action)
            if len(actions) == len(OBSERVATIONS):
                return StepResult(reward=0.5, terminated=True, success=True)
            return StepResult(OBSERVATIONS[len(actions)])

        return SimpleNamespace(observation=OBSERVATIONS[0], step=step, state_key=lambda: repr(actions).encode())


def infer(context: str, request: Request) -> str:
    """Return the action between two observations, if the prompt shows both and the one before."""
    del request
    question = context.rsplit("<|im_start|>user\n", 1)[1].partition("<|im_end|>")[0]
    questions = {
        ImputedActions().question_of(OBSERVATIONS, step): f"perhaps {action}" for step, action in enumerate(ACTIONS)
    }
    return questions[question]


def test_actions_are_taken_from_the_recording_or_filled_in() -> None:
    run = solve(recipes.SS_ORL, infer, world=Recordings(), tasks=2, group_size=1)
    assert run.num_requests == 3, "for each action that is not known"
    recorded = {tuple(row.actions) for row in run.drawn if len(row.actions) == 3}
    assert recorded == {ACTIONS, tuple(f"perhaps {action}" for action in ACTIONS)}
    answers = {(row.prompt, *row.actions) for row in run.drawn if len(row.actions) == 1}
    assert answers == {
        (ImputedActions().question_of(OBSERVATIONS, step), action) for step, action in enumerate(ACTIONS)
    }
    imputed, inverse = run.fact("imputed"), run.fact("inverse")
    assert sorted(zip(imputed, inverse, strict=True)) == [(0, 0), (0, 1), (0, 1), (0, 1), (1, 0)]
    paid = dict(zip(zip(imputed, inverse, strict=True), run.fact("score"), strict=True))
    assert paid == {(0, 0): 0.5, (1, 0): 0.5, (0, 1): 1.0}
    helpers = [row for row in run.rows if row.role == "helper"]
    assert [row.actions for row in helpers].count(["?", "?", "?"]) == 1, "a recording is looked at once"
    assert sum(row.prompt.startswith("Seen:") for row in helpers) == 3


def test_the_question_includes_earlier_observations() -> None:
    assert ImputedActions(past=0, question="{seen}>{next}").question_of(OBSERVATIONS, 1) == "a hall>a key"
    assert ImputedActions(past=5, question="{seen}>{next}").question_of(OBSERVATIONS, 2) == "a door\na hall\na key>"


def test_the_recipe_resumes_after_interruptions() -> None:
    assert check_resumes(recipes.SS_ORL, infer, world=Recordings(), every=2, group_size=1) >= 1
