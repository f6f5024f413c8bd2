"""SSP: one model proposes questions for given answers, and solves them.

The proposer gets an answer and searches until it writes `<question>...</question>`. Then a helper checks the question:
it answers the question with a context of all texts that the proposer has read, mixed with texts that four other
proposers have read. If the helper does not find the given answer, or the proposer has read nothing, the question is
invalid and the reward of the proposer is the penalty. Otherwise n = 5 solvers try the question without help, and the
reward of the proposer is 1 - acc, or 4 (acc - low) (high - acc) with `kind="intermediate"`. In place of an invalid
question the solvers get a random question of a pool, which holds questions tried in earlier iterations and is cleared
every ten iterations. If the pool is empty, there are no solvers. Source: arXiv:2510.18821.

    L = - mean over solvers of the mean over tokens of (r - mean r) log pi + 0.01 KL
        - mean over proposers of the sum over tokens of R log pi

Solvers are compared with the solvers of the same question, without a std; a proposer has its raw reward (REINFORCE).
Each role has its own denominator. A batch has 2 optimizer steps, so the clip range of the code, 0.2 and 0.285, acts.

Equations:
    Read: sections 3.2 and 3.3 and algorithm 1 of the paper, and the public code.

    - 3, game: `SearchSelfPlay`; a question counts if it can be answered with the proposer's documents.
    - 4, solver: `GroupRelative(scale="none")`, `Policy("sequence_mean", kl=KL(0.01))`, for solvers.
    - 5, proposer: `SearchSelfPlay.paid`, and `Policy("constant", constant=1.0)`, the sum over tokens, for proposers.
    - C1, division by the std in the code: `GroupRelative()` for solvers; not computed: an option.
    - C2, raw reward of the proposer in the code: the same as 5; not computed: 5 has the example.
    - C3, invalid questions in the code: `penalty`, and the pool; not computed: the recipe's own test covers it.

Differs:
    - Proposer's loss in the code: a mean over tokens, with the KL; use `Policy("token_mean", kl=KL(0.01))` for it.
    - Invalid questions: the paper drops them and collects a full batch; the code and this recipe reward them with
      `penalty`.
    - Clip: the paper's equations have none; the code and this recipe have 0.2 and 0.285.
    - Optimizer steps a batch: in the code 2 for the solvers, then 2 for the proposers; here 2 for both together.
    - Noise documents: the code takes them from this iteration, this recipe from the one before.

The environment must show a task's question, and score answers by the task's payload. With a pool, the payload must
consist of plain JSON values.

Needs: a model that follows the format of the proposer's prompt. The small model of `agentrl train` never writes
`<question>`, so its proposers get no reward and it learns nothing.
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
    """Run a proposer, a check of its question, and solvers; keep questions and texts that were read in memory.

    The draw column `proposer` is 1 for proposers, 0 for solvers.

    Args:
        solvers: number of solvers of a question.
        temperature: sampling temperature of the proposer.
        kind: reward of the proposer: `hard` or `intermediate`.
        low: `low` in the formula of `intermediate`.
        high: `high` in the formula of `intermediate`.
        penalty: reward of the proposer for an invalid question.
        proposing: prompt template of the proposer: `{prompt}` is the environment's prompt of the task.
        checking: prompt template of the helper: `{prompt}` is the question, `{text}` the texts that the proposer and
            others have read.
        noise: largest number of other proposers whose texts the helper gets.
        every: number of iterations after which the pool is cleared; 0: there is no pool.
        keep: share of the pool, its newest part, that is not cleared.
        reuse_at_most: largest share of successful solvers of a reused question; others are used only if the pool has no
            such question.

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
        """Return the reward of the proposer, given the share of solvers that succeed."""
        if self.kind == "hard":
            return 1.0 - share
        return 4.0 * (share - self.low) * (self.high - share) if 0.0 < share < 1.0 else 0.0

    def initial_state(self) -> State:
        """Return an empty pool of questions and an empty list of texts that proposers read."""
        return {"pool": [], "read": []}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Add tried questions to the pool, which is cleared periodically, and replace the texts that were read."""
        pool = [*state["pool"], *read_notes(closed.finished, "tried")]
        if self.every and (closed.iteration + 1) % self.every == 0:
            pool = pool[len(pool) - int(len(pool) * self.keep) :]
        return {"pool": pool, "read": read_notes(closed.finished, "read")}

    async def group(self, group: Group) -> None:
        """Propose a question, check it, and run its solvers."""
        proposer = group.start(
            lambda messages: insert_text(messages, self.proposing, ""),
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
        """Return whether a helper finds the answer in the proposer's texts, mixed with those of other proposers."""
        others = [text for text in self.recall(group)["read"] if text != read]
        noise = [others[place] for place in _shuffled(group, "noise", len(others))[: self.noise]]
        texts = [read, *noise]
        text = "\n\n".join(texts[place] for place in _shuffled(group, "order", len(texts)))
        check = _Informed(template=self.checking, text=text)
        check_group = await group.spawn(task, program=check, parent=proposer, role="helper")
        return bool(check_group.branches[0].success)

    async def solved(self, group: Group, task: Task, proposer: Branch) -> float:
        """Return the share of solvers that find the answer, and note the question for the pool."""
        solvers = await group.spawn(task, size=self.solvers, program=_Solvers(), parent=proposer)
        share = sum(bool(branch.success) for branch in solvers.branches) / self.solvers
        if self.every:
            self.note(group, "tried", {"task": vars(task), "share": share}, proposer)
        return share

    def earlier(self, group: Group) -> Task | None:
        """Return a random question of the pool, or None if the pool is empty."""
        pool = self.recall(group)["pool"]
        chosen = [entry for entry in pool if entry["share"] <= self.reuse_at_most] or pool
        return Task(**chosen[int(group.uniform("earlier") * len(chosen))]["task"]) if chosen else None

    async def proposed(self, proposer: Branch) -> str | None:
        """Return the question, which is not sent to the environment, or None if there is none or it is empty."""
        while True:
            await proposer.generate()
            questions = _QUESTION.findall(proposer.text)
            if questions:
                return str(questions[-1]).strip() or None
            turn = await proposer.submit()
            if turn.over:
                return None

    def final_group_size(self, group_size: int) -> int:
        """Return the number of solvers plus 1 for the proposer; `group_size` is not used."""
        del group_size
        return 1 + self.solvers


@dataclass(frozen=True)
class _Solvers(Rollout):
    """Roll out solvers of a question, with the fact `proposer` 0."""

    facts: ClassVar[Mapping[str, ExtraColumn]] = SearchSelfPlay.facts

    async def group(self, group: Group) -> None:
        """Run all solvers."""
        await group.run(group.start_many(group.size, facts={"proposer": 0}))


@dataclass(frozen=True)
class _Informed(Rollout):
    """Roll out one answer to a prompt that contains an additional text."""

    template: str = option("{prompt}{text}", filled=True)
    text: str = ""

    async def group(self, group: Group) -> None:
        """Run the single branch."""
        await group.run([group.start(lambda messages: insert_text(messages, self.template, self.text))])


def _texts(branch: Branch) -> list[str]:
    """Return the texts of the environment's observations after a branch's actions."""
    answers = [turn.observation for turn in branch.turns if turn.observation is not None]
    contents = [message.get("content") for answer in answers for message in as_messages(answer)]
    return [text for text in contents if isinstance(text, str)]


def _shuffled(group: Group, name: str, count: int) -> list[int]:
    """Return the whole numbers below `count` in random order."""
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
