"""SSP: one model proposes questions for given answers, and solves them.

The proposer is told an answer and searches until it says `<question>...</question>`. A helper answers that question
with all that the proposer has read in sight; where it does not find the given answer, the question is not valid and the
proposer is paid the penalty. Else n = 5 solvers try it without help, and the proposer is paid 1 - acc where acc > 0 and
the penalty where nobody solves it; or 4 (acc - low) (high - acc) with `kind="intermediate"`. Solvers are compared with
each other, a proposer alone keeps its raw reward. Source: arXiv:2510.18821, whose defaults these are.

The environment shows a task's question, and judges by its payload. Not here: replacing invalid questions from a pool of
earlier ones, and documents of other trajectories as noise.

Needs: a model that can propose in the form that is asked for. The small one that `agentrl train` makes says no
`<question>`: its proposers are paid nothing, and nothing is learned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.env import Fact
from agentrl_core.loss import Clip, Policy
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Branch, Group, Independent, Rollout
from agentrl_core.rollout.guidance import beside

_QUESTION = re.compile(r"<question>(.*?)</question>", re.DOTALL)


@dataclass(frozen=True)
class SearchSelfPlay(Rollout):
    """A proposer, a check of what it proposes, and solvers.

    The draw column `proposer` is 1 for proposers.

    Args:
        solvers: how many try a question.
        temperature: of the proposer.
        kind: what the proposer is paid: `hard` or `intermediate`.
        low: for `intermediate`.
        high: for `intermediate`.
        penalty: what it is paid for a question that is not valid.
        proposing: its prompt: `{prompt}` is what the environment shows of the task.
        checking: the helper's prompt: `{prompt}` is the question, `{text}` what the proposer has read and said.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ssp import SearchSelfPlay
        >>> [SearchSelfPlay().paid(share) for share in (0.0, 0.2, 1.0)]
        [0.0, 0.8, 0.0]
        >>> SearchSelfPlay(kind="intermediate").paid(0.5)
        1.0
    """

    facts: ClassVar[Mapping[str, Fact]] = {"proposer": Fact("trajectory")}

    solvers: int = option(5, at_least=1)
    temperature: float = option(0.8, at_least=0)
    kind: Literal["hard", "intermediate"] = "hard"
    low: float = option(0.0, at_least=0, at_most=1)
    high: float = option(1.0, at_least=0, at_most=1)
    penalty: float = 0.0
    proposing: str = option("Find a question whose answer is this, in <question></question>:\n{prompt}", filled=True)
    checking: str = option("{prompt}\n\nWhat is known:\n{text}", filled=True)

    def paid(self, share: float) -> float:
        """What the proposer is paid where so many of the solvers succeed."""
        if self.kind == "hard":
            return 1.0 - share if share > 0.0 else self.penalty
        return 4.0 * (share - self.low) * (self.high - share) if 0.0 < share < 1.0 else 0.0

    async def group(self, group: Group) -> None:
        """Propose, check, solve."""
        proposer = group.start(
            lambda asked: beside(asked, self.proposing, ""),
            sampling=group.sampling(temperature=self.temperature),
            facts={"proposer": 1},
        )
        question = await self.proposed(proposer)
        if proposer.over:
            return
        if question is None:
            proposer.finish(reward=self.penalty, success=False)
            return
        task = replace(group.task, task_id=f"{group.task.task_id}/{group.name}", question=question)
        check = _Informed(template=self.checking, text=proposer.text)
        checked = await group.spawn(task, program=check, parent=proposer, role="helper")
        if not checked.branches[0].success:
            proposer.finish(reward=self.penalty, success=False)
            return
        solved = await group.spawn(task, size=self.solvers, program=Independent(), parent=proposer)
        share = sum(bool(branch.success) for branch in solved.branches) / self.solvers
        proposer.finish(reward=self.paid(share), success=share > 0.0)

    async def proposed(self, proposer: Branch) -> str | None:
        """The question, which the environment does not see; None: the proposer has ended without one."""
        while True:
            await proposer.generate()
            found = _QUESTION.findall(proposer.text)
            if found:
                return str(found[-1]).strip() or None
            turn = await proposer.answer()
            if turn.over:
                return None

    def branches(self, group_size: int) -> int:
        """The proposer and its solvers, whatever was asked for."""
        del group_size
        return 1 + self.solvers


@dataclass(frozen=True)
class _Informed(Rollout):
    """One answer with something in sight."""

    template: str = option("{prompt}{text}", filled=True)
    text: str = ""

    async def group(self, group: Group) -> None:
        """The one."""
        await group.run([group.start(lambda asked: beside(asked, self.template, self.text))])


SSP = Recipe(
    name="ssp",
    source="arXiv:2510.18821",
    rollout=SearchSelfPlay(),
    advantage=GroupRelative(singleton="raw"),
    loss=Policy(clip=Clip(0.2, 0.285)),
)
