"""SSP: a proposer, a check, solvers: who is paid what, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from riddles import RIGHT, WRONG, check_resumes, solve, step

from agentrl_core import recipes
from agentrl_core.engine import Request


def speaker(right: int, *, question: str = "what is it?", checked: bool = True) -> Callable[[str, Request], str]:
    """A proposer that looks once and then asks; a helper that knows or not; solvers of which so many are right."""
    left = [right]

    def speak(context: str, request: Request) -> str:
        del request
        if "Find a question" in context:
            return f"<question>{question}</question>" if "go on" in context else "look"
        if "What is known" in context:
            assert "look" in context, "the helper sees what the proposer did"
            return RIGHT if checked else WRONG
        assert question in context
        left[0] -= 1
        return RIGHT if left[0] >= 0 else WRONG

    return speak


@pytest.mark.parametrize(("right", "paid"), [(1, 0.8), (4, 0.2), (5, 0.0), (0, 0.0)])
def test_a_proposer_is_paid_for_what_is_hard_and_possible(right: int, paid: float) -> None:
    run = solve(recipes.SSP, speaker(right), group_size=1)
    # Two actions of the proposer, one of the helper, five of solvers.
    assert run.asked == 2 + 1 + 5
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
    assert (unchecked.asked, len(unchecked.drawn), unchecked.fact("reward")) == (3, 1, [0.0])
    empty = solve(recipes.SSP, speaker(5, question=" "), group_size=1)
    assert (empty.asked, len(empty.drawn)) == (2, 1)


def test_it_resumes_and_comes_to_a_step() -> None:
    def speak(context: str, request: Request) -> str:
        if "Find a question" in context:
            return "<question>what?</question>" if "go on" in context else "look"
        return RIGHT if "What is known" in context or request.seed % 3 else WRONG

    assert check_resumes(recipes.SSP, speak, group_size=1) >= 2
    assert step(recipes.SSP, solve(recipes.SSP, speak, tasks=3, group_size=1, seed=1).batch) >= 1
