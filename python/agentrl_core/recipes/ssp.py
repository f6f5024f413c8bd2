"""SSP: one model proposes questions for given answers, and solves them.

The proposer gets an answer and searches until it writes `<question>...</question>`. A helper answers that question
with all that the proposer has read in sight, among what four other proposers have read; if it does not find the
given answer, or nothing was read, the question is not valid and the proposer is paid the penalty. Else n = 5 solvers
try it without help, and the proposer is paid 1 - acc, or 4 (acc - low) (high - acc) with `kind="intermediate"`. In
place of a question that is not valid the solvers get one of a pool, by chance: what was tried in earlier iterations,
which is forgotten every ten. If the pool is empty there are no solvers. Source: arXiv:2510.18821.

    L = - mean over solvers of the mean over tokens of (r - mean r) log pi + 0.01 KL
        - mean over proposers of the sum over tokens of R log pi

Solvers are compared with those of the same question, without a std; a proposer has its raw reward (REINFORCE). Each
role has a denominator of its own. A batch is 2 optimizer steps, and the clip range of the code, 0.2 and 0.285, acts.

Equations:
    Read: sections 3.2 and 3.3 and algorithm 1 of the paper, and the public code.

    - 3, game: `SearchSelfPlay`; a question counts if it can be answered with the proposer's documents.
    - 4, solver: `GroupRelative(scale="none")`, `Policy("sequence_mean", kl=KL(0.01))`, of solvers.
    - 5, proposer: `SearchSelfPlay.paid`, and `Policy("constant", constant=1.0)`, the sum over tokens, of proposers.
    - C1, division by the std in the code: `GroupRelative()` of solvers; not computed: an option.
    - C2, raw reward of the proposer in the code: the same as 5; not computed: the example is that of 5.
    - C3, invalid questions in the code: `penalty`, and the pool; not computed: in the recipe's own test.

Differs:
    - Proposer's loss in the code: a mean over tokens, with the KL; `Policy("token_mean", kl=KL(0.01))` is that.
    - Invalid questions: the paper drops them and collects a full batch; the code and this recipe pay `penalty`.
    - Clip: the paper's equations have none; the code and this recipe have 0.2 and 0.285.
    - Optimizer steps a batch: in the code 2 for the solvers, then 2 for the proposers; here 2 for both together.
    - Noise documents: the code takes them from this iteration, this recipe from the one before.

The environment shows a task's question, and judges by its payload, which is made of plain JSON values where there is a
pool.

Needs: a model that can propose in the form that is asked for. The small one that `agentrl train` makes writes no
`<question>`: its proposers are paid nothing, and nothing is learned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, State, Where, option
from agentrl_core.env import ExtraColumn, Task, as_messages
from agentrl_core.loss import KL, Clip, Policy, Sum
from agentrl_core.rollout import Branch, Group, Rollout, TextMemory, insert_text, read_notes

_QUESTION = re.compile(r"<question>(.*?)</question>", re.DOTALL)


@dataclass(frozen=True)
class SearchSelfPlay(TextMemory):
    """A proposer, a check of what it proposes, and solvers; what was proposed and read is remembered.

    The draw column `proposer` is 1 for proposers, 0 for solvers.

    Args:
        solvers: how many try a question.
        temperature: of the proposer.
        kind: what the proposer is paid: `hard` or `intermediate`.
        low: for `intermediate`.
        high: for `intermediate`.
        penalty: what it is paid for a question that is not valid.
        proposing: its prompt: `{prompt}` is what the environment shows of the task.
        checking: the helper's prompt: `{prompt}` is the question, `{text}` what the proposer and others have read.
        noise: of how many others, at most.
        every: iterations after which the pool is cleared; 0: there is no pool.
        keep: the part of it that stays then, the newest.
        reuse_at_most: questions of the pool that a larger share of its solvers answered are taken where there is no
            other.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ssp import SearchSelfPlay
        >>> [SearchSelfPlay().paid(share) for share in (0.0, 0.2, 1.0)]
        [1.0, 0.8, 0.0]
        >>> SearchSelfPlay(kind="intermediate").paid(0.5)
        1.0
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"proposer": ExtraColumn("trajectory")}

    solvers: int = option(5, at_least=1)
    temperature: float = option(0.8, at_least=0)
    kind: Literal["hard", "intermediate"] = "hard"
    low: float = option(0.0, at_least=0, at_most=1)
    high: float = option(1.0, at_least=0, at_most=1)
    penalty: float = 0.0
    proposing: str = option("Find a question whose answer is this, in <question></question>:\n{prompt}", filled=True)
    checking: str = option("{prompt}\n\nWhat is known:\n{text}", filled=True)
    noise: int = option(4, at_least=0)
    every: int = option(10, at_least=0)
    keep: float = option(0.0, at_least=0, at_most=1)
    reuse_at_most: float = option(1.0, at_least=0, at_most=1)

    def paid(self, share: float) -> float:
        """Reward of the proposer, by the share of solvers that succeed."""
        if self.kind == "hard":
            return 1.0 - share
        return 4.0 * (share - self.low) * (self.high - share) if 0.0 < share < 1.0 else 0.0

    def initial_state(self) -> State:
        """Nothing was proposed, and nothing read."""
        return {"pool": [], "read": []}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Add tried questions to the pool, which is cleared periodically, and replace the texts that were read."""
        pool = [*state["pool"], *read_notes(closed.finished, "tried")]
        if self.every and (closed.iteration + 1) % self.every == 0:
            pool = pool[len(pool) - int(len(pool) * self.keep) :]
        return {"pool": pool, "read": read_notes(closed.finished, "read")}

    async def group(self, group: Group) -> None:
        """Propose, check, solve."""
        proposer = group.start(
            lambda asked: insert_text(asked, self.proposing, ""),
            sampling=group.sampling(temperature=self.temperature),
            facts={"proposer": 1},
        )
        question = await self.proposed(proposer)
        task = replace(group.task, task_id=f"{group.task.task_id}/{group.name}", question=question or "")
        read = "\n\n".join(_texts(proposer))
        valid = bool(question and read) and await self.checked(group, task, proposer, read)
        if self.noise and read:
            self.note(group, "read", read, proposer)
        if valid:
            share = await self.solved(group, task, proposer)
            proposer.finish(reward=self.paid(share), success=share > 0.0)
            return
        if not proposer.over:
            proposer.finish(reward=self.penalty, success=False)
        earlier = self.earlier(group)
        if earlier is not None:
            await self.solved(group, earlier, proposer)

    async def checked(self, group: Group, task: Task, proposer: Branch, read: str) -> bool:
        """Return whether a helper finds the given answer in what the proposer has read, among what others have."""
        others = [text for text in self.recall(group)["read"] if text != read]
        noise = [others[place] for place in _shuffled(group, "noise", len(others))[: self.noise]]
        texts = [read, *noise]
        text = "\n\n".join(texts[place] for place in _shuffled(group, "order", len(texts)))
        check = _Informed(template=self.checking, text=text)
        found = await group.spawn(task, program=check, parent=proposer, role="helper")
        return bool(found.branches[0].success)

    async def solved(self, group: Group, task: Task, proposer: Branch) -> float:
        """The share of the solvers who find the answer; the question comes to the pool."""
        solvers = await group.spawn(task, size=self.solvers, program=_Solvers(), parent=proposer)
        share = sum(bool(branch.success) for branch in solvers.branches) / self.solvers
        if self.every:
            self.note(group, "tried", {"task": vars(task), "share": share}, proposer)
        return share

    def earlier(self, group: Group) -> Task | None:
        """A question of the pool, by chance; None if that is empty."""
        pool = self.recall(group)["pool"]
        chosen = [tried for tried in pool if tried["share"] <= self.reuse_at_most] or pool
        return Task(**chosen[int(group.uniform("earlier") * len(chosen))]["task"]) if chosen else None

    async def proposed(self, proposer: Branch) -> str | None:
        """The question, which the environment does not see; None: the proposer has ended without one."""
        while True:
            await proposer.generate()
            found = _QUESTION.findall(proposer.text)
            if found:
                return str(found[-1]).strip() or None
            turn = await proposer.submit()
            if turn.over:
                return None

    def final_group_size(self, group_size: int) -> int:
        """The proposer and its solvers, whatever was asked for."""
        del group_size
        return 1 + self.solvers


@dataclass(frozen=True)
class _Solvers(Rollout):
    """Answers to a question, which are not proposers'."""

    facts: ClassVar[Mapping[str, ExtraColumn]] = SearchSelfPlay.facts

    async def group(self, group: Group) -> None:
        """All of them."""
        await group.run(group.start_many(group.size, facts={"proposer": 0}))


@dataclass(frozen=True)
class _Informed(Rollout):
    """One answer with something in sight."""

    template: str = option("{prompt}{text}", filled=True)
    text: str = ""

    async def group(self, group: Group) -> None:
        """The one."""
        await group.run([group.start(lambda asked: insert_text(asked, self.template, self.text))])


def _texts(branch: Branch) -> list[str]:
    """The environment's answers to its actions."""
    answers = [turn.observation for turn in branch.turns if turn.observation is not None]
    said = [message.get("content") for answer in answers for message in as_messages(answer)]
    return [text for text in said if isinstance(text, str)]


def _shuffled(group: Group, name: str, count: int) -> list[int]:
    """The numbers below a count in an order by chance."""
    return sorted(range(count), key=lambda place: group.uniform(name, place))


_SOLVERS, _PROPOSERS = Where(column="proposer", at_most=0.5), Where(column="proposer", at_least=0.5)
_CLIP = Clip(0.2, 0.285)

SSP = Recipe(
    name="ssp",
    source="arXiv:2510.18821",
    rollout=SearchSelfPlay(),
    advantage=(
        GroupRelative(scale="none", where=_SOLVERS),
        GroupRelative(center="none", scale="none", where=_PROPOSERS),
    ),
    loss=Sum(
        Policy("sequence_mean", clip=_CLIP, kl=KL(0.01)),
        Policy("constant", constant=1.0, clip=_CLIP),
        first_where=_SOLVERS,
        second_where=_PROPOSERS,
    ),
    minibatches=2,
)
