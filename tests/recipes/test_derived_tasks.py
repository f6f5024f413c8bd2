"""Programs that derive tasks from rollouts: judgements, reflections, referees, decisions; traced by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from riddles import RIGHT, WRONG, Riddles, check_resumes, in_turn, script, solve, step

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.engine import Request
from agentrl_core.env import Task
from agentrl_core.exceptions import AgentRLError
from agentrl_core.recipes.ada_search import SearchWhereNeeded
from agentrl_core.recipes.spark import JudgeAndReflect
from agentrl_core.recipes.urpo import PlayerReferee

YES, NO = "\\boxed{yes}", "\\boxed{no}"


def of(domain: str, payload: Any = None) -> Any:
    """Return riddles of a domain."""

    class World(Riddles):
        def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
            tasks = super().tasks(count, split=split, start=start)
            return [Task(task.task_id, task.question, domain, payload, task.solution) for task in tasks]

    return World()


def judging(share: float) -> Any:
    """Return a speaker: its seeds decide whether solutions are right, and whether judges answer yes or A."""

    def speak(context: str, request: Request) -> str:
        chance = request.seed % 997 / 997
        if "right?" in context:
            return (YES if "\\boxed{yes}" in context else "\\boxed{A}") if chance < 0.5 else NO
        return RIGHT if chance < share else WRONG

    return speak


def test_spark_derives_tasks_from_the_outcomes_of_rollouts() -> None:
    def prompts(*answers: str, **options: Any) -> tuple[list[tuple[str, list[float]]], Any]:
        run = solve(JudgeAndReflect(**options), in_turn(*answers), group_size=2)
        derived = [row for row, recycled in zip(run.drawn, run.fact("recycled"), strict=True) if recycled]
        rewards = [reward for reward, new in zip(run.fact("reward"), run.fact("recycled"), strict=True) if new]
        names = dict.fromkeys(row.prompt for row in derived)
        return [
            (name, [reward for row, reward in zip(derived, rewards, strict=True) if row.prompt == name])
            for name in names
        ], run

    # All right: one is judged, and yes is right; there is no reflection.
    [(judged, rewards)], run = prompts(RIGHT, RIGHT, YES, NO)
    assert judged.startswith("riddle?\n\nAn answer:\nright\n\nIs it right?")
    assert rewards == [1.0, 0.0]
    assert run.num_requests == 4
    # All wrong: no is right; and one is reflected on as a whole, which the environment pays.
    [(judged, rewards), (again, paid)], run = prompts(WRONG, WRONG, YES, NO, RIGHT, WRONG)
    assert "An answer:\nwrong\n" in judged
    assert rewards == [0.0, 1.0]
    assert again.startswith(f"riddle?\n\nA proposed answer:\n{WRONG}\n\nJudge whether it is right.")
    assert paid == [1.0, 0.0]
    assert len(set(run.batch.keys("group_id", "draw").tolist())) == 3, "each item is a group"
    # Mixed: both are compared, or with probability 1 one is judged alone.
    [(pair, _), _], _ = prompts(RIGHT, WRONG, "\\boxed{A}", "\\boxed{B}", RIGHT, pointwise=0.0)
    first, second = pair.index("\nright\n"), pair.index("\nwrong\n")
    [(pair, rewards), _], _ = prompts(RIGHT, WRONG, "\\boxed{a}", "\\boxed{B}", RIGHT, pointwise=0.0)
    assert rewards == ([1.0, 0.0] if first < second else [0.0, 1.0]), "the label is where the right one stands"
    [(alone, _), _], _ = prompts(RIGHT, WRONG, YES, pointwise=1.0)
    assert "Is it right?" in alone
    # Without a result nothing is judged, but the first half of a batch reflects on it.
    [(again, _)], _ = prompts(WRONG, WRONG, result="<never>(.*)</never>")
    assert "Judge whether" in again
    assert prompts(WRONG, WRONG, judgements=0, reflections=0)[0] == [], "no item beyond what is asked for"


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 4), st.integers(0, 1000))
def test_spark_makes_no_more_items_than_it_may(judgements: int, reflections: int, tasks: int, seed: int) -> None:
    program = JudgeAndReflect(judgements=judgements, reflections=reflections)
    run = solve(program, judging(0.5), tasks=tasks, group_size=2, seed=seed)
    assert sum(run.fact("recycled")) <= 2 * (min(judgements, tasks) + min(reflections, tasks))
    assert sum(run.fact("recycled")) >= 2 * min(judgements, tasks)


def test_urpo_rewards_a_referee_by_how_it_orders_answers() -> None:
    world = of("preference", {"ranks": [3, 1, 2]})
    run = solve(PlayerReferee(), in_turn("9, 1, 5", "1 2 3", "5 5 1", "no idea"), world=world)
    # 9 > 5 > 1 is the order: 1. 1 2 3: of (3,1), (3,2), (1,2) the last alone is right: -1/3. 5 5 1: 3 before 2 is so,
    # 1 before 2 is wrong, equal ones order nothing: 0.
    np.testing.assert_allclose(run.fact("reward"), [1.0, -1 / 3, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(run.fact("ordered"), [1.0, 1 / 3, 1 / 3, 0.0], atol=1e-6)
    program = PlayerReferee(momentum=0.5)
    state = program.next(program.initial_state(), IterationRecord.of(run.batch))
    assert state["average"] == pytest.approx((1 + 1 / 3 + 1 / 3) / 4)
    assert program.next(state, IterationRecord.of(run.batch))["average"] == pytest.approx(state["average"])
    with pytest.raises(AgentRLError, match="give a table with `ranks`"):
        solve(PlayerReferee(), in_turn("1"), world=of("preference"))
    assert solve(PlayerReferee(), in_turn(RIGHT, WRONG), group_size=2).fact("reward") == [1.0, 0.0], "others as ever"


@pytest.mark.parametrize(("scores", "paid"), [("2 and 7", [2.0, 7.0]), ("both are fine", [np.nan, np.nan])])
def test_urpo_scores_its_own_answers_once_the_referee_is_good(scores: str, paid: list[float], tmp_path: Any) -> None:
    def speak(context: str, request: Request) -> str:
        if "Score each answer" in context:
            assert "Answer 1:\n" in context
            assert "Answer 2:\n" in context
            return scores
        return "9 1" if "rank" in context else f"a poem {request.seed % 7}"

    class Both(Riddles):
        """Riddles with a preference first, then open tasks."""

        def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
            kinds = [("preference", "rank", {"ranks": [2, 1]}), ("open", "poem?", None)]
            return [
                Task(f"{split} {number}", kinds[number % 2][1], kinds[number % 2][0], kinds[number % 2][2], ())
                for number in range(start, start + count)
            ]

    rewards = []
    with arl.Store.open(tmp_path / "run", sync="never") as store:
        recipe = recipes.URPO
        collect = arl.Collector(script(speak), Both(), recipe, store=store, task_pool=2, seed=1)
        for _ in range(2):
            batch = collect(tasks=2, group_size=2)
            rewards.append(np.sort(batch.column("reward", "draw")).tolist())
            collect.end_iteration(recipe.credit(batch), {})
    assert rewards[0] == [1.0, 1.0], "open tasks wait for the referee"
    np.testing.assert_array_equal(rewards[1], [1.0, 1.0, *paid])


def test_ada_search_learns_both_ways_and_then_which() -> None:
    def speak(context: str, request: Request) -> str:
        if "know or search" in context:
            return ("I know it", "I search", "hm")[request.seed % 3]
        return RIGHT if "Search before" in context else WRONG

    run = solve(SearchWhereNeeded(), speak)
    assert run.fact("manner") == [0, 0, 1, 1]
    assert [row.prompt.rpartition("\n")[2] for row in run.rows] == [
        "Answer from what you know, without search.",
        "Answer from what you know, without search.",
        "Search before you answer.",
        "Search before you answer.",
    ]
    assert run.fact("reward") == [0, 0, 1, 1]
    program = SearchWhereNeeded()
    task = run.batch.texts("task_id", "draw")[0]
    state = program.next(program.initial_state(), IterationRecord.of(run.batch))
    assert state == {"rates": {task: [2, 0]}}
    assert program.next(state, IterationRecord.of(run.batch)) == {"rates": {task: [4, 0]}}
    assert SearchWhereNeeded(first_stage=0).next(state, IterationRecord.of(run.batch)) == state
    # The second stage: 3 helpers fail without search, so searching is right.
    run = solve(SearchWhereNeeded(first_stage=0, samples=3), speak)
    assert sum(row.role == "helper" for row in run.rows) == 3
    assert run.fact("manner") == [2] * 4
    actions = [row.actions[0] for row in run.drawn]
    assert run.fact("reward") == [float(text == "I search") for text in actions]


CASES: dict[str, Any] = {
    "spark": (recipes.SPARK.replace(rollout=JudgeAndReflect(judgements=1, reflections=1)), judging(0.5), {}),
    "urpo": (
        recipes.URPO,
        lambda _, request: f"{request.seed % 3} {request.seed % 5}",
        {"world": of("preference", {"ranks": [2, 1]})},
    ),
    "ada_search": (recipes.ADA_SEARCH, judging(0.5), {}),
    "ada_search decides": (
        recipes.ADA_SEARCH.replace(rollout=SearchWhereNeeded(first_stage=0, samples=2)),
        lambda _, request: ("know", "search")[request.seed % 2],
        {"turn_limit": 2},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_recipe_resumes_and_takes_optimizer_steps(name: str) -> None:
    recipe, speak, options = CASES[name]
    assert check_resumes(recipe, speak, **options) >= 2
    for seed in range(20):
        run = solve(recipe, speak, tasks=2, seed=seed, **options)
        if recipe.credit(run.batch).column("advantage", "draw").any():
            break
    assert step(recipe, run.batch) >= 1
