"""Compute the values that a program of ICPI imagines, from given memories and scripted agent answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from riddles import in_turn, solve

from agentrl_core.recipes.icpi import Imagine
from agentrl_core.rollout import Branch, Group

_MEMORY: list[Any] = []
_VALUES: list[float] = []
_QUESTIONS: list[str] = []


@dataclass(frozen=True)
class Watched(Imagine):
    """A program that imagines every turn from the given episodes and records the values."""

    def recall(self, group: Group) -> Any:
        del group
        return {"episodes": list(_MEMORY)}

    def chance_of_model(self, successes: int) -> float:
        del successes
        return 1.0

    async def value(self, *args: Any) -> float:
        value = await super().value(*args)
        _VALUES.append(value)
        return value

    async def _ask(self, branch: Branch, agent: str, question: str) -> str:
        if agent == "world":
            _QUESTIONS.append(question)
        return await super()._ask(branch, agent, question)


def world_questions(program: Imagine, steps: Sequence[Sequence[Any]], answers: Sequence[str]) -> list[str]:
    """Return the request to the world model before a first turn.

    Args:
        program: a program with one action.
        steps: the steps of a remembered episode.
        answers: answers of the agents, in the order of requests; the last one repeats.
    """
    _MEMORY[:] = [[list(step) for step in steps]]
    _QUESTIONS.clear()
    solve(Watched(**asdict(program)), in_turn(*answers), group_size=1, turn_limit=1)
    return list(_QUESTIONS)


def first_turn(program: Imagine, answers: Sequence[str]) -> tuple[list[float], str]:
    """Return the values of all actions before a first turn, and the chosen action.

    Args:
        program: a program whose actions were each taken once, without reward.
        answers: answers of the agents, in the order of requests; the last one repeats.
    """
    _MEMORY[:] = [[["a", action, 0.0, False, "b"]] for action in program.actions]
    _VALUES.clear()
    run = solve(Watched(**asdict(program)), in_turn(*answers), group_size=1, turn_limit=1)
    [member] = [row for row in run.rows if row.role == "member"]
    return list(_VALUES), member.actions[0]
