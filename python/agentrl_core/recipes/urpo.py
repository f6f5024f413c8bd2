"""URPO: one model answers tasks and grades answers, in one loop (arXiv:2507.17515).

A batch contains three kinds of tasks, by their domain:

    open        G answers; the same model, queried separately and not trained, scores them all; scores are the rewards
    preference  a question with N candidates whose order is known: an answer is N scores, rewarded by Kendall's tau of
                the two orders (for two candidates 1 or 0), 0 if it does not have N numbers
    any other   the environment returns the reward

Open tasks wait until the referee is good enough. They get no rollouts until the moving average of the share of pairs
that it orders correctly has reached 0.7 (the paper has a warm-up of unknown length; this rule is our choice).
Advantages are GRPO's within each group.

Needs, for preference tasks: `Task.payload`, a table whose `ranks` has a number for each candidate, larger for a better
one.

Equations:
    Read: the abstract, and notes of others; the paper's text was not read.

    - N1, verifiable data: the environment's reward.
    - N2, preference data: `PlayerReferee`, Kendall's tau of the scores and the known order.
    - N3, open-ended data: `PlayerReferee`; the referee's response is not trained. If it does not have a score for each
      answer, the group has no scores.
    - N4, one loop: `GroupRelative` in each group, and one `Policy` over the batch.

Differs:
    - Warm-up of the referee: of unknown length in the paper; here open tasks wait for the referee's moving average.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import IterationRecord, Rows, State, option
from agentrl_core.env import ExtraColumn
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Policy
from agentrl_core.operators.group_comparison import rank_agreement
from agentrl_core.rollout import Branch, Group, TextMemory, ask_agent

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class PlayerReferee(TextMemory):
    """Roll out three kinds of tasks: open tasks that the model scores itself, preference tasks, and all other tasks.

    The draw column `ordered` is the share of candidate pairs that an answer orders correctly, and -1 for all other
    draws.

    Args:
        opened_at: average of `ordered` at which open tasks start.
        momentum: momentum of this average, at least 0 and below 1.
        question: prompt template of the referee: `{question}` and the numbered `{answers}`.

    Raises:
        RecipeError: an option is out of range.
        InvalidInputError: a preference task has no ranks.

    Example:
        >>> from agentrl_core.recipes.urpo import PlayerReferee
        >>> PlayerReferee().scores("8, 2.5 and 9", 3), PlayerReferee().scores("8", 3)
        ([8.0, 2.5, 9.0], None)
        >>> PlayerReferee().judged("8, 2.5 and 9", [3.0, 2.0, 1.0])  # one of three pairs is right: (1 - 2) / 3
        (-0.3333333333333333, 0.3333333333333333)
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"ordered": ExtraColumn("trajectory")}

    opened_at: float = option(0.7, at_least=0, at_most=1)
    momentum: float = option(0.9, at_least=0, below=1)
    question: str = option(
        "{question}\n\n{answers}\n\nScore each answer from 0 to 10, in order, and say nothing else.", filled=True
    )

    def initial_state(self) -> State:
        """Return the state without an average."""
        return {"average": None}

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the average, moved towards the share of pairs that the iteration ordered correctly."""
        shares = Rows(closed.batch, "draw").values("ordered")
        shares = shares[shares >= 0.0]
        if not len(shares):
            return state
        average, share = state["average"], float(shares.mean())
        return {"average": share if average is None else self.momentum * average + (1.0 - self.momentum) * share}

    async def group(self, group: Group) -> None:
        """Roll out a group by its task's domain; skip open tasks until the average reaches `opened_at`."""
        if group.task.domain == "preference":
            await group.run(group.start_many(group.size, facts={"ordered": -1.0}), self.order)
        elif group.task.domain != "open":
            await group.run(group.start_many(group.size, facts={"ordered": -1.0}))
        elif (self.recall(group)["average"] or 0.0) >= self.opened_at:
            await self.answer(group)

    async def order(self, branch: Branch) -> None:
        """Generate scores of the candidates, and reward them by their agreement with the known order."""
        payload = branch.group.task.payload
        ranks = payload.get("ranks") if isinstance(payload, Mapping) else None
        if not ranks or len(ranks) < 2:
            raise InvalidInputError(
                f"{self.title()}: preference task {branch.group.task.task_id!r} has the payload {payload!r:.80}; "
                "give a table with `ranks`, a number for each of at least two candidates"
            )
        await branch.generate()
        if not branch.over:
            reward, share = self.judged(branch.text, [float(rank) for rank in ranks])
            branch.finish(reward=reward, success=share == 1.0, facts={"ordered": share})

    def judged(self, text: str, ranks: Sequence[float]) -> tuple[float, float]:
        """Return the reward of scores of candidates, and the share of pairs that they order correctly."""
        scores = self.scores(text, len(ranks))
        if scores is None:
            return 0.0, 0.0
        pairs = [(one, other) for other in range(len(ranks)) for one in range(other) if ranks[one] != ranks[other]]
        right = sum((scores[one] - scores[other]) * (ranks[one] - ranks[other]) > 0.0 for one, other in pairs)
        reward = float(rank_agreement(scores, list(ranks), [0, len(ranks)])[0])
        return reward, right / max(len(pairs), 1)

    def scores(self, text: str, count: int) -> list[float] | None:
        """Return the scores in a text, or None unless it has exactly `count` of them."""
        scores = [float(number) for number in _NUMBER.findall(text)]
        return scores if len(scores) == count else None

    async def answer(self, group: Group) -> None:
        """Generate answers, and reward them with the referee's scores."""
        branches = group.start_many(group.size, facts={"ordered": -1.0})
        await group.advance(branches)
        branches = [branch for branch in branches if not branch.over]
        if not branches:
            return
        answers = "\n\n".join(f"Answer {number}:\n{branch.text}" for number, branch in enumerate(branches, start=1))
        question = self.question.replace("{question}", group.prompt).replace("{answers}", answers)
        scores = self.scores(await ask_agent(group, question, agent="policy", about=branches[0]), len(branches))
        rewards = [np.nan] * len(branches) if scores is None else [float(np.clip(score, 0.0, 10.0)) for score in scores]
        for branch, reward in zip(branches, rewards, strict=True):
            branch.finish(reward=reward, success=False)


URPO = Recipe(
    name="urpo",
    source="arXiv:2507.17515",
    rollout=PlayerReferee(),
    advantage=GroupRelative(),
    loss=Policy(),
)
