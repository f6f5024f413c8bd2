"""Sources of hints for a policy: a part of the solution, solutions of other tasks, the response of another agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from agentrl_core.component.component import Component
from agentrl_core.component.options import option
from agentrl_core.env.base import Content, Message
from agentrl_core.env.image import Image
from agentrl_core.rollout.branch import Branch
from agentrl_core.rollout.group import Group


class Hint(NamedTuple):
    """A hint for the policy: texts of actions, of which the last one may be incomplete.

    Attributes:
        actions: the hint, one text per action.
        ends: whether the last action is complete; otherwise the policy continues it.
        share: used share of the last action's tokens.
    """

    actions: tuple[str, ...]
    ends: bool = False
    share: float = 1.0

    @property
    def text(self) -> str:
        """The actions, joined by blank lines."""
        return "\n\n".join(self.actions)


@dataclass(frozen=True)
class HintSource(Component, ABC):
    """Base class of hint sources. A hint is shown in the prompt, or starts the policy's action.

    Example:
        >>> from dataclasses import dataclass
        >>> from agentrl_core.rollout import HintSource, Hint
        >>> @dataclass(frozen=True)
        ... class Domain(HintSource):
        ...     async def hint(self, group, of):
        ...         return Hint((f"This is a task of {group.task.domain}.",))
        >>> Domain()
        Domain()
    """

    phase: ClassVar[str] = "rollout"

    @abstractmethod
    async def hint(self, group: Group, of: Sequence[Branch]) -> Hint | None:
        """Return the hint for a group, or None.

        Args:
            group: the group of the task.
            of: the branches that the hint is about, such as failed ones; may be empty.
        """


@dataclass(frozen=True)
class SolutionHint(HintSource):
    """Give the first part of the task's solution (`Task.solution`); a task without a solution gets no hint.

    Args:
        share: share of the solution.
        unit: unit of the share, rounded down: `characters` of the whole, `actions`, or `tokens` of its only action (if
            the hint starts the action; in a prompt, characters are used).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.rollout import SolutionHint
        >>> SolutionHint(share=0.5).part(("abcd", "ef")).actions  # 3 of 6 characters
        ('abc',)
        >>> SolutionHint(share=0.5, unit="actions").part(("abcd", "ef"))
        Hint(actions=('abcd',), ends=True, share=1.0)
    """

    share: float = option(1.0, at_least=0, at_most=1)
    unit: Literal["characters", "tokens", "actions"] = "characters"

    async def hint(self, group: Group, of: Sequence[Branch]) -> Hint | None:
        """Return the part of the task's solution."""
        del of
        return self.part(tuple(group.task.solution)) if group.task.solution else None

    def part(self, solution: tuple[str, ...]) -> Hint:
        """Return the first part of a solution."""
        if self.share >= 1.0:
            return Hint(solution, ends=True)
        if self.unit == "actions":
            return Hint(solution[: int(self.share * len(solution))], ends=True)
        if self.unit == "tokens" and len(solution) == 1:
            return Hint(solution, share=self.share)
        remaining = int(self.share * sum(map(len, solution)))
        actions: list[str] = []
        for action in solution:
            if len(action) > remaining:
                return Hint((*actions, action[:remaining]) if remaining else tuple(actions), ends=not remaining)
            actions.append(action)
            remaining -= len(action)
        return Hint(tuple(actions), ends=True)


@dataclass(frozen=True)
class ExampleHint(HintSource):
    """Show solutions of other tasks from earlier iterations (`Group.library`).

    An example is the text of a trajectory, its actions joined by blank lines. The task itself is never shown. Without
    solved tasks there is no hint.

    Args:
        count: number of examples, of different tasks, with the latest solution of each.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.rollout import ExampleHint
        >>> ExampleHint(count=2).count
        2
    """

    count: int = option(1, at_least=1)

    async def hint(self, group: Group, of: Sequence[Branch]) -> Hint | None:
        """Return the newest solutions of randomly chosen other tasks; None if no other task was solved."""
        del of
        solved: dict[str, list[int]] = {}
        for trajectory in group.library.solved():
            solved.setdefault(group.library.task_id(trajectory), []).append(trajectory)
        solved.pop(group.task.task_id, None)
        tasks = sorted(solved, key=lambda task: (group.uniform("example", task), task))[: self.count]
        chosen = [solved[task][-1] for task in tasks]
        texts = ("\n\n".join(group.library.actions(trajectory)) for trajectory in chosen)
        return Hint(tuple(texts), ends=True) if chosen else None


async def ask_agent(group: Group, question: Content, *, agent: str, about: Branch | None = None) -> str:
    """Query an agent with a question, in a helper branch, and return its response.

    Args:
        group: the group of the helper branch.
        question: the question.
        agent: name of the agent.
        about: the branch that the question is about, the parent of the helper.
    """
    helper = group.start(question, agent=agent, role="helper", parent=about)
    await helper.generate()
    text = helper.text
    if not helper.over:
        helper.finish()
    return text


def fill_template(question: str, group: Group, of: Sequence[Branch]) -> str:
    """Fill a template with the task, its solution and the text of the first branch in `of`."""
    parts = {
        "{task}": group.task.question,
        "{solution}": "\n\n".join(group.task.solution),
        "{attempt}": of[0].text if of else "",
    }
    return _replaced(question, parts)


def insert_text(content: Content, template: str, text: str) -> Content:
    """Insert a text into a prompt: the filled `template` replaces the last user message.

    Args:
        content: the prompt of the environment.
        template: `{prompt}` is replaced by the message, `{text}` by the text.
        text: the inserted text.
    """
    if isinstance(content, str):
        return _replaced(template, {"{prompt}": content, "{text}": text})
    messages: list[Message] = [content] if isinstance(content, dict) else list(content)
    last = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=None)
    if last is None:
        return [{"role": "user", "content": text}, *messages]
    original = messages[last].get("content", "")
    if isinstance(original, str):
        filled: str | list[str | Image] = _replaced(template, {"{prompt}": original, "{text}": text})
    else:  # keep texts and images in order
        around = template.split("{prompt}")
        filled = [_replaced(around[0], {"{text}": text})]
        for piece in around[1:]:
            filled += [*original, _replaced(piece, {"{text}": text})]
        filled = [part for part in filled if part != ""]
    new_message: Message = {**messages[last], "content": filled}
    return [*messages[:last], new_message, *messages[last + 1 :]]


def _replaced(template: str, parts: dict[str, str]) -> str:
    """Fill a template; inserted texts are not scanned again."""
    if not parts:
        return template
    (name, value), *others = parts.items()
    return value.join(_replaced(piece, dict(others)) for piece in template.split(name))
