"""Repair: locate the first bad step of a failed trajectory, and correct it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from agentrl_core.component.component import Component
from agentrl_core.component.options import option
from agentrl_core.data.table_codes import StepFlag
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.group import Group
from agentrl_core.rollout.programs.hints import ask_agent, fill_template
from agentrl_core.rollout.programs.rounds import RolloutSpec, RoundResult, Rounds
from agentrl_core.rollout.token_path import Position


class ReasoningStep(NamedTuple):
    """A part of a branch's text, between two blank lines.

    Attributes:
        number: its number in the branch, from 0.
        turn: number of its turn.
        begin: the position before its first token.
        text: its text.
    """

    number: int
    turn: int
    begin: Position
    text: str


class ErrorLocation(NamedTuple):
    """Location of an error in a branch.

    Attributes:
        step: the first bad step.
        share: share of the branch's steps before the bad one.
        advice: text to use in place of the bad step, if known.
    """

    step: ReasoningStep
    share: float
    advice: str = ""


def reasoning_steps(branch: Branch) -> list[ReasoningStep]:
    """Return the steps of an ended branch: its actions, split at blank lines."""
    steps: list[ReasoningStep] = []
    for turn in branch.turns:
        first = turn.begin.tokens
        tokens = branch.tokens[first : first + turn.length]
        for part in re.finditer(r"\S.*?(?=\n\s*\n|\Z)", turn.text, re.DOTALL):
            inside = branch.tokens_before(tokens, part.start())
            place = branch.position(first + inside) if inside else turn.begin
            steps.append(ReasoningStep(len(steps), turn.index, place, part.group()))
    return steps


@dataclass(frozen=True)
class ErrorLocator(Component, ABC):
    """Base class of error locators, which find the first bad step of an ended branch.

    Example:
        >>> from dataclasses import dataclass
        >>> from agentrl_core.rollout import ErrorLocation, ErrorLocator, reasoning_steps
        >>> @dataclass(frozen=True)
        ... class Last(ErrorLocator):
        ...     async def locate(self, group, branch):
        ...         *_, last = reasoning_steps(branch)
        ...         return ErrorLocation(last, share=last.number / (last.number + 1))
        >>> Last()
        Last()
    """

    phase: ClassVar[str] = "rollout"

    @abstractmethod
    async def locate(self, group: Group, branch: Branch) -> ErrorLocation | None:
        """Return the first bad step of an ended branch; None if unknown."""


@dataclass(frozen=True)
class FlagLocator(ErrorLocator):
    """Locate the first turn that the environment flagged, such as a failed call.

    Args:
        flags: `env.StepFlag` bits, any of them.

    Example:
        >>> from agentrl_core.rollout import FlagLocator
        >>> FlagLocator().flags
        1
    """

    flags: int = option(int(StepFlag.TOOL_ERROR), at_least=1)

    async def locate(self, group: Group, branch: Branch) -> ErrorLocation | None:
        """Return the first flagged turn as one step; None if no turn is flagged."""
        del group
        for turn in branch.turns:
            if turn.flags & self.flags:
                step = ReasoningStep(turn.index, turn.index, turn.begin, turn.text)
                return ErrorLocation(step, turn.index / len(branch.turns))
        return None


@dataclass(frozen=True)
class JudgeLocator(ErrorLocator):
    """Locate the first step that a judge marks as bad: a process reward model, or the policy itself.

    The agent gets the numbered steps and returns a mark for each, in order: a number, or one of the
    words good (1), uncertain (0.5) and bad (0). The first step with a mark below `threshold` is bad. Fewer marks than
    steps: the rest is good.

    Args:
        agent: name of the judging agent of the collector; without an engine of that name, the policy judges.
        question: its prompt; `{task}`, `{solution}` and `{attempt}` as in `AgentHint`, `{steps}` are the numbered
            steps.
        threshold: steps with a mark below it are bad.

    Example:
        >>> from agentrl_core.rollout import JudgeLocator
        >>> JudgeLocator(threshold=0.5).marks("1: good, 2: 0.75, 3: bad", 3)
        [1.0, 0.75, 0.0]
    """

    agent: str = option("judge", filled=True)
    question: str = option(
        "Judge each step of an attempt: for each, one line `number: mark`, a mark from 0 (bad) to 1 (good).\n\n"
        "Task:\n{task}\n\nSteps:\n{steps}",
        filled=True,
    )
    threshold: float = option(0.5, at_least=0, at_most=1)

    async def locate(self, group: Group, branch: Branch) -> ErrorLocation | None:
        """Return the first step whose mark by the judge is below the threshold; None if there is none."""
        steps = reasoning_steps(branch)
        if not steps:
            return None
        listed = "\n\n".join(f"{step.number + 1}: {step.text}" for step in steps)
        question = fill_template(self.question, group, [branch]).replace("{steps}", listed)
        marks = self.marks(await ask_agent(group, question, agent=self.agent, about=branch), len(steps))
        first = next((number for number, mark in enumerate(marks) if mark < self.threshold), None)
        return None if first is None else ErrorLocation(steps[first], first / len(steps))

    def marks(self, answer: str, count: int) -> list[float]:
        """Parse the marks of `count` steps from the judge's answer; 1 for a step without a mark."""
        words = {"good": 1.0, "uncertain": 0.5, "bad": 0.0}
        found = re.findall(r"(\d+)\s*:\s*(good|uncertain|bad|\d*\.?\d+)", answer.lower())
        marks = {int(number): words[mark] if mark in words else float(mark) for number, mark in found}
        return [marks.get(number, 1.0) for number in range(1, count + 1)]


@dataclass(frozen=True)
class Repair(Rounds, ABC):
    """Base class of programs that, after a round, locate errors of failed members and repair them.

    Subclasses implement the correction in `repair`.

    Args:
        members: rollouts of the first round.
        column: score column, as in `Rounds`.
        solved_above: a member has solved the task if its value is larger.
        locator: locates the bad step.
        rate_below: repair only tasks with a smaller success rate.
        share_at_least: smallest share of a member's steps before the bad one.
        at_most: largest number of repairs per group.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from dataclasses import dataclass
        >>> from agentrl_core.rollout import JudgeLocator, Repair
        >>> @dataclass(frozen=True)
        ... class Again(Repair):
        ...     async def repair(self, group, branch, fault):
        ...         await group.run([branch.fork(at=fault.step.begin)])
        ...         return True
        >>> Again(locator=JudgeLocator()).final_group_size(group_size=4)
        4
    """

    locator: ErrorLocator = FlagLocator()
    rate_below: float = option(1.0, at_least=0)
    share_at_least: float = option(0.0, at_least=0, at_most=1)
    at_most: int = option(1, at_least=1)

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Run the first round, then repairs."""
        if not rounds:
            return self.members
        solved = self.solved(rounds[0])
        if solved.mean() < self.rate_below:
            await self._repair(
                group, [branch for branch, won in zip(rounds[0].branches, solved, strict=True) if not won]
            )
        return None

    async def _repair(self, group: Group, failures: list[Branch]) -> None:
        repaired = 0
        for branch in failures:
            if repaired == self.at_most:
                return
            fault = await self.locator.locate(group, branch) if branch.status in ("finished", "truncated") else None
            if fault is not None and fault.share >= self.share_at_least:
                repaired += await self.repair(group, branch, fault)

    @abstractmethod
    async def repair(self, group: Group, branch: Branch, fault: ErrorLocation) -> bool:
        """Correct the bad step of a branch, and return whether it succeeded."""
