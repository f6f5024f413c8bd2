"""SSP: rewards of proposer, checker and solvers, and the memory, by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from riddles import RIGHT, WRONG, Riddles, Run, check_resumes, rows_of, script, solve, step
from sampled import RecordingEngine, check_sampled

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.engine import Request
from agentrl_core.env import StepResult, Task
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.ssp import SearchSelfPlay
from agentrl_core.rollout import Group


def speaker(right: int, *, question: str = "what is it?", checked: bool = True) -> Callable[[str, Request], str]:
    """Return a speaker: a proposer that looks once and then asks; a helper with or without the answer; solvers."""
    remaining = [right]

    def speak(context: str, request: Request) -> str:
        del request
        if "Find a question" in context:
            return f"<question>{question}</question>" if "go on" in context else "look"
        if "What is known" in context:
            assert "look" not in context, "the helper sees what the proposer read, not what it said"
            assert "go on" in context
            return RIGHT if checked else WRONG
        assert question in context
        remaining[0] -= 1
        return RIGHT if remaining[0] >= 0 else WRONG

    return speak


@pytest.mark.parametrize(("right", "paid"), [(1, 0.8), (4, 0.2), (5, 0.0), (0, 1.0)])
def test_the_reward_of_a_proposer_is_the_failure_rate_of_the_solvers(right: int, paid: float) -> None:
    run = solve(recipes.SSP, speaker(right), group_size=1)
    # Two actions of the proposer, one of the helper, five of solvers.
    assert run.num_requests == 2 + 1 + 5
    assert [row.role for row in run.rows].count("helper") == 1
    proposers, rewards = run.fact("proposer"), run.fact("reward")
    assert proposers.count(1.0) == 1
    assert rewards[proposers.index(1.0)] == pytest.approx(paid)
    assert sum(rewards) - rewards[proposers.index(1.0)] == pytest.approx(right)
    advantage = recipes.SSP.credit(run.batch).column("advantage", "draw")
    assert advantage[proposers.index(1.0)] == pytest.approx(paid, abs=1e-5), "alone, its raw reward"
    proposal = next(row for row in run.drawn if "Find a question" in row.prompt)
    assert [action for action in proposal.actions if action] == ["look", "<question>what is it?</question>"]


def test_a_question_that_is_not_valid_has_no_solvers() -> None:
    unchecked = solve(recipes.SSP, speaker(5, checked=False), group_size=1)
    assert (unchecked.num_requests, len(unchecked.drawn), unchecked.fact("reward")) == (3, 1, [0.0])
    empty = solve(recipes.SSP, speaker(5, question=" "), group_size=1)
    assert (empty.num_requests, len(empty.drawn)) == (2, 1)


def test_the_recipe_resumes_and_takes_an_optimizer_step() -> None:
    def speak(context: str, request: Request) -> str:
        if "Find a question" in context:
            return "<question>what?</question>" if "go on" in context else "look"
        return RIGHT if "What is known" in context or request.seed % 3 else WRONG

    assert check_resumes(recipes.SSP, speak, group_size=1) >= 2
    assert step(recipes.SSP, solve(recipes.SSP, speak, tasks=3, group_size=1, seed=1).batch) >= 1


def proposals(run: Any) -> list[float]:
    """Return the rewards of the proposers."""
    return [paid for paid, proposer in zip(run.fact("reward"), run.fact("proposer"), strict=True) if proposer == 1.0]


def iterations(speakers: list[Any], folder: Path, recipe: Recipe = recipes.SSP, tasks: int = 2) -> list[Run]:
    """Run iterations, each with its own speaker."""
    runs = []
    for speak in speakers:
        with arl.Store.open(folder, sync="never") as store:
            recorder = RecordingEngine(script(speak))
            collect = arl.Collector(recorder, Riddles(), recipe, store=store, task_pool=64)
            batch = collect(tasks=tasks, group_size=1)
            runs.append(Run(batch, rows_of(batch), len(recorder.exchanges), check_sampled(batch, recorder)))
            collect.end_iteration(batch, {})
    return runs


def asks(question: str, contexts: list[str], *, valid: bool = True) -> Callable[[str, Request], str]:
    """Return a proposer that looks and asks, a check that passes or not, right solvers; record the questions."""

    def speak(context: str, request: Request) -> str:
        del request
        if "Find a question" in context:
            return f"<question>{question}</question>" if "go on" in context else "look"
        contexts.append(context)
        if "What is known" in context:
            return RIGHT if valid else WRONG
        return RIGHT

    return speak


def test_a_question_that_is_not_valid_is_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    contexts: list[list[str]] = [[], [], []]
    first, second, third = iterations(
        [asks("one?", contexts[0]), asks("two?", contexts[1], valid=False), asks("three?", contexts[2], valid=False)],
        tmp_path,
    )
    assert len(first.drawn) == 2 * (1 + 5)
    # No solver answers two?, so its proposers get the penalty; five solvers each get one? again.
    solvers = [context for context in contexts[1] if "What is known" not in context]
    assert len(solvers) == 2 * 5
    assert all("one?" in context and "two?" not in context for context in solvers)
    assert len(second.drawn) == 2 * (1 + 5)
    assert proposals(second) == [0.0, 0.0]
    rewards = second.fact("reward")
    assert sum(rewards) == 10.0, "the solvers are right"
    # The pool has the solved questions: one? of both iterations, and never two?.
    assert all("one?" in context for context in contexts[2] if "What is known" not in context)
    assert proposals(third) == [0.0, 0.0]


def test_an_empty_pool_has_no_solvers_and_is_cleared_now_and_then(tmp_path: Path) -> None:
    contexts: list[str] = []
    [run] = iterations([asks("one?", contexts, valid=False)], tmp_path / "empty")
    assert (len(run.drawn), proposals(run)) == (2, [0.0, 0.0])
    program = SearchSelfPlay(every=2, keep=0.5)
    recipe = recipes.SSP.replace(rollout=program)
    runs = iterations([asks("one?", contexts), asks("two?", contexts)], tmp_path / "cleared", recipe)
    state = program.initial_state()
    for iteration, each in enumerate(runs):
        state = program.next(state, IterationRecord(iteration, each.batch))
    # Two of each iteration; at the end of the second the newer half stays: int(4 / 2) = 2, those of the second.
    assert [tried["task"]["question"] for tried in state["pool"]] == ["two?", "two?"]
    state_of_three = SearchSelfPlay(every=3).next(program.initial_state(), IterationRecord(0, runs[0].batch))
    assert [tried["share"] for tried in state_of_three["pool"]] == [1.0, 1.0]
    assert SearchSelfPlay(every=1).next(state_of_three, IterationRecord(0, runs[0].batch))["pool"] == []


def test_questions_that_are_too_easy_come_last() -> None:
    class Tasks(SearchSelfPlay):
        def recall(self, group: Group) -> dict[str, Any]:
            del group
            tasks = [vars(Task(f"t {share}", f"{share}?", "riddles", None)) for share in (0.2, 0.4, 1.0)]
            return {"pool": [{"task": task, "share": float(task["question"][:-1])} for task in tasks], "read": []}

    def questions_up_to(at_most: float) -> set[str]:
        contexts: list[str] = []
        solve(Tasks(reuse_at_most=at_most), asks("new?", contexts, valid=False), tasks=12, group_size=1)
        solvers = [context for context in contexts if "What is known" not in context]
        return {text for text in ("0.2?", "0.4?", "1.0?") for context in solvers if text in context}

    assert questions_up_to(0.2) == {"0.2?"}
    assert questions_up_to(1.0) == {"0.2?", "0.4?", "1.0?"}
    assert questions_up_to(0.1) == {"0.2?", "0.4?", "1.0?"}, "where none is so hard, any"


def test_the_checker_context_includes_documents_of_other_tasks(tmp_path: Path) -> None:
    class Saying(Riddles):
        """Answers a call with a document of the task."""

        def reset(self, task: Task, seed: int) -> Any:
            episode = super().reset(task, seed)
            inner = episode.step

            def step_(action: str) -> StepResult:
                outcome = inner(action)
                if outcome.terminated:
                    return outcome
                return StepResult(f"go on: about {task.task_id}", flags=outcome.flags)

            episode.step = step_  # type: ignore[method-assign]
            return episode

    recorded: list[list[str]] = [[], []]
    with arl.Store.open(tmp_path, sync="never") as store:
        for place in range(2):
            recorder = RecordingEngine(script(asks("what?", recorded[place])))
            recipe = recipes.SSP.replace(rollout=SearchSelfPlay(noise=2))
            collect = arl.Collector(recorder, Saying(), recipe, store=store, task_pool=4, seed=3)
            batch = collect(tasks=4, group_size=1)
            assert check_sampled(batch, recorder) > 0
            collect.end_iteration(batch, {})
    checks = [[context for context in contexts if "What is known" in context] for contexts in recorded]
    assert [context.count("about train") for context in checks[0]] == [1, 1, 1, 1], "nothing was read before"
    # Each has its own, and two of the three others of the last iteration.
    for context in checks[1]:
        documents = {f"about train {number}" for number in range(4) if f"about train {number}" in context}
        assert len(documents) == 3
        assert context.count("about train") == 3
    order = [[int(part[0]) for part in context.split("about train ")[1:]] for context in checks[1]]
    assert any(numbers != sorted(numbers) for numbers in order), "in an order by chance"
