"""Where a text comes from that helps a policy: a solution, an instruction, the advice of another agent."""

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
    """A text that helps.

    Attributes:
        actions: it, one text for each action.
        ends: whether the last action is whole; else somebody goes on with it.
        share: of the tokens of the last action.
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
    """Base of the texts that help: shown in a prompt, or said by the policy as the beginning of its answer.

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
        """The text for a group, or None where there is none.

        Args:
            group: whose task is to be solved.
            of: the branches that the text is about, such as those that failed; may be none.
        """


@dataclass(frozen=True)
class SolutionHint(HintSource):
    """The first part of how the task is solved (`Task.solution`); a task without one gets no help.

    Args:
        share: how much of it.
        unit: of what the share is taken: of the `characters` of the whole (floor), of its `actions` (floor), or of the
            `tokens` of its only action (floor; where it is said by the policy, shown it is taken of the characters).

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
        """The part of the task's solution."""
        del of
        return self.part(tuple(group.task.solution)) if group.task.solution else None

    def part(self, solution: tuple[str, ...]) -> Hint:
        """The first part of a solution."""
        if self.share >= 1.0:
            return Hint(solution, ends=True)
        if self.unit == "actions":
            return Hint(solution[: int(self.share * len(solution))], ends=True)
        if self.unit == "tokens" and len(solution) == 1:
            return Hint(solution, share=self.share)
        left = int(self.share * sum(map(len, solution)))
        actions: list[str] = []
        for action in solution:
            if len(action) > left:
                return Hint((*actions, action[:left]) if left else tuple(actions), ends=not left)
            actions.append(action)
            left -= len(action)
        return Hint(tuple(actions), ends=True)


@dataclass(frozen=True)
class ExampleHint(HintSource):
    """What solved other tasks in earlier iterations, as far as the run has kept it (`Group.library`).

    An example is what a trajectory said, its actions joined by blank lines. The task itself is never shown. Nothing is
    shown as long as nothing was solved.

    Args:
        count: examples, of different tasks, of each the latest solution.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.rollout import ExampleHint
        >>> ExampleHint(count=2).count
        2
    """

    count: int = option(1, at_least=1)

    async def hint(self, group: Group, of: Sequence[Branch]) -> Hint | None:
        """The examples, of tasks that chance chooses."""
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
    """What an agent says to a question, in a branch that is kept and never drawn.

    Args:
        group: in which it is asked.
        question: what it is asked.
        agent: who.
        about: the branch that the question is about: the parent of the answer.
    """
    helper = group.start(question, agent=agent, role="helper", parent=about)
    await helper.generate()
    text = helper.text
    if not helper.over:
        helper.finish()
    return text


def fill_template(question: str, group: Group, of: Sequence[Branch]) -> str:
    """A question with the task, its solution and the first attempt in their places."""
    parts = {
        "{task}": group.task.question,
        "{solution}": "\n\n".join(group.task.solution),
        "{attempt}": of[0].text if of else "",
    }
    return _replaced(question, parts)


def insert_text(content: Content, template: str, text: str) -> Content:
    """What is asked, with a text in it: the last message of a user becomes `template`.

    Args:
        content: what the environment asks.
        template: `{prompt}` becomes what was asked, `{text}` the text.
        text: what is put in.
    """
    if isinstance(content, str):
        return _replaced(template, {"{prompt}": content, "{text}": text})
    messages: list[Message] = [content] if isinstance(content, dict) else list(content)
    last = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=None)
    if last is None:
        return [{"role": "user", "content": text}, *messages]
    asked = messages[last].get("content", "")
    if isinstance(asked, str):
        said: str | list[str | Image] = _replaced(template, {"{prompt}": asked, "{text}": text})
    else:  # texts and images stay in their order
        around = template.split("{prompt}")
        said = [_replaced(around[0], {"{text}": text})]
        for piece in around[1:]:
            said += [*asked, _replaced(piece, {"{text}": text})]
        said = [part for part in said if part != ""]
    shown: Message = {**messages[last], "content": said}
    return [*messages[:last], shown, *messages[last + 1 :]]


def _replaced(template: str, parts: dict[str, str]) -> str:
    """The template with its places filled; what is put in is not looked at again."""
    if not parts:
        return template
    (name, value), *others = parts.items()
    return value.join(_replaced(piece, dict(others)) for piece in template.split(name))
