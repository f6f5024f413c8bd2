"""Agent-RLVR: retry failed attempts with guidance that training does not see, and prefer successes (arXiv:2506.11425).

The agent `teacher` writes guidance about each failed attempt, and the policy repeats the task with this guidance.
Guided trajectories are trained with the original prompt, without the guidance (`Branch.with_prompt`). The loss is DPO
on pairs of rollouts of the same task:

    a guided success with the attempt that it repeats;   another success with an unguided failure
    L = - mean over pairs of log sigmoid(0.1 (x_success - x_failure)),   x = sum of log p - log p_ref

The paper samples 16 trajectories per task (`collect(group_size=16)`) and does not state beta.

Needs: the reference model, an agent `teacher`.

Equations:
    Read: the paper's section 2.2 and algorithm 1.

    - N1, loop: `GuidedRetry`: each failed attempt is repeated once.
    - N2, pairs: `AttemptPairs`; `NearestPairs`, which pairs by length, is not from the paper.
    - N3, DPO: `Preference(beta=0.1)`, on sums over trained tokens.

Differs:
    - Pairs: the paper may pair one failure with several successes; here a draw is in at most one pair, and a success
      without a remaining failure is in none.
    - Instruct-tuning: the paper first imitates a fifth of the unguided successes for five epochs, and uses the
      resulting model as the reference; here the user provides the policy and the reference.
    - Trajectories of the teacher: the paper also trains them; none here.
    - Optimizer steps: the paper makes one epoch over the pairs of all tasks, and does not state its batch size; 1 here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Preference
from agentrl_core.rollout import (
    Branch,
    Group,
    Hint,
    HintSource,
    RolloutSpec,
    RoundResult,
    Rounds,
    ask_agent,
    fill_template,
)

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class AgentHint(HintSource):
    """Query another agent for a hint; its prompt contains the task and an attempt.

    Args:
        agent: name of an agent of the collector; an agent without its own engine uses the policy's engine.
        question: prompt template of the agent. `{task}` becomes the task's question, `{solution}` its solution, and
            `{attempt}` the text of the first branch that the hint is about.

    Example:
        >>> from agentrl_core.recipes.agent_rlvr import AgentHint
        >>> AgentHint(agent="teacher").question.splitlines()[0]
        'Give a hint for this task, without its answer.'
    """

    agent: str = option("teacher", filled=True)
    question: str = option(
        "Give a hint for this task, without its answer.\n\nTask:\n{task}\n\nAn attempt that failed:\n{attempt}",
        filled=True,
    )

    async def hint(self, group: Group, of: Sequence[Branch]) -> Hint | None:
        """Return the agent's response as a hint, or None if it is empty."""
        text = await ask_agent(
            group, fill_template(self.question, group, of), agent=self.agent, about=next(iter(of), None)
        )
        return Hint((text,)) if text else None


@dataclass(frozen=True)
class _About(HintSource):
    """Query a hint source about one attempt of the first round."""

    source: HintSource
    place: int = 0

    async def hint(self, group: Group, of: Sequence[Branch]) -> Hint | None:
        """Return the source's hint about this attempt."""
        return await self.source.hint(group, of[self.place : self.place + 1])


@dataclass(frozen=True)
class GuidedRetry(Rounds):
    """Repeat each failed attempt once, with a teacher's guidance that training does not see.

    The draw column `attempt` numbers the first attempts of a group from 1; it is -k for the repetition of attempt k.

    Args:
        guided: spec of a repeated attempt; the program itself sets its count and its fact.

    Example:
        >>> from agentrl_core.recipes.agent_rlvr import GuidedRetry
        >>> sorted(GuidedRetry().facts)
        ['attempt']
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"attempt": ExtraColumn("trajectory")}

    guided: RolloutSpec = RolloutSpec(  # noqa: RUF009 - frozen
        hint=AgentHint(
            question="Give guidance for this task: a plan, what went wrong, and where to look, without the answer.\n\n"
            "Task:\n{task}\n\nIts solution:\n{solution}\n\nAn attempt that failed:\n{attempt}"
        ),
        train_without_hint=True,
    )

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Return the first attempts, then the guided repetitions of the failed ones."""
        if not rounds:
            kinds = [kind for kind in self.members for _ in range(group.size if kind.count is None else kind.count)]
            return _numbered(kinds, range(1, len(kinds) + 1))
        failed = np.flatnonzero(np.isfinite(rounds[0].scores) & ~self.solved(rounds[0])).tolist()
        if len(rounds) > 1 or not failed or self.guided.hint is None:
            return None
        return _numbered(
            [replace(self.guided, hint=_About(self.guided.hint, place)) for place in failed],
            [-place - 1 for place in failed],
        )


def _numbered(kinds: Sequence[RolloutSpec], numbers: Sequence[int]) -> RolloutSpec:
    """Return one rollout per spec, with its number as the fact `attempt`."""
    pairs = zip(kinds, numbers, strict=True)
    return reduce(add, [replace(kind, count=1, fact="attempt", value=number, others=None) for kind, number in pairs])


@dataclass(frozen=True)
class AttemptPairs(BatchComponent):
    """Pair successes with unguided failures of their group: draw column `pair`, advantage 1 and -1, 0 without a pair.

    A guided success is paired with the attempt that it repeats. Each other success, in order, takes the first remaining
    unguided failure; members of a group differ only by chance. Draws without a partner have pair -1 and advantage 0; so
    do all guided failures.

    Args:
        attempt: draw column of attempt numbers: -k for the guided repetition of attempt k.

    Example:
        >>> from agentrl_core.recipes.agent_rlvr import AttemptPairs
        >>> AttemptPairs().makes
        (draw('advantage'), draw('pair'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("success"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("pair"))

    attempt: str = column_name("attempt", level="draw")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `advantage` and `pair` on draws."""
        rows = Rows(batch, "draw")
        succeeded, numbers, groups = rows.flags("success"), rows.values(self.attempt), rows.keys("group_id")
        counted = rows.valid & rows.is_known("success") & (batch.column("trained", "draw") != 0)
        pairs = np.full(len(rows), -1, np.int64)
        num_pairs = 0
        for group in np.unique(groups[counted]):
            in_group = counted & (groups == group)
            failures = np.flatnonzero(in_group & ~succeeded & (numbers >= 0)).tolist()
            for success in np.flatnonzero(in_group & succeeded)[
                np.argsort(numbers[in_group & succeeded] >= 0, kind="stable")
            ].tolist():
                candidates = [each for each in failures if numbers[success] >= 0 or numbers[each] == -numbers[success]]
                if candidates:
                    pairs[[success, candidates[0]]] = num_pairs
                    failures.remove(candidates[0])
                    num_pairs += 1
        advantages = np.where(pairs < 0, 0.0, np.where(succeeded, 1.0, -1.0))
        return rows.write(advantage=advantages).with_columns("draw", pair=pairs)


@dataclass(frozen=True)
class NearestPairs(BatchComponent):
    """Pair up to `at_most` successes of a group with the failures nearest in length: column `pair`, advantage 1, -1.

    Successes choose in order; of equally near failures the first is taken. A draw is in at most one pair; unpaired
    draws have pair -1 and advantage 0.

    Args:
        at_most: largest number of pairs per group.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.agent_rlvr import NearestPairs
        >>> NearestPairs().makes
        (draw('advantage'), draw('pair'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("success"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("pair"))

    at_most: int = option(4, at_least=1)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `advantage` and `pair` on draws."""
        rows = Rows(batch, "draw")
        succeeded, lengths, groups = rows.flags("success"), rows.values("trained_tokens"), rows.keys("group_id")
        counted = rows.valid & rows.is_known("success") & (batch.column("trained", "draw") != 0)
        pairs = np.full(len(rows), -1, np.int64)
        num_pairs = 0
        for group in np.unique(groups[counted]):
            failures = np.flatnonzero(counted & (groups == group) & ~succeeded)
            for success in np.flatnonzero(counted & (groups == group) & succeeded)[: self.at_most]:
                if not len(failures):
                    break
                nearest = int(np.argmin(np.abs(lengths[failures] - lengths[success])))
                pairs[[success, failures[nearest]]] = num_pairs
                failures = np.delete(failures, nearest)
                num_pairs += 1
        advantages = np.where(pairs < 0, 0.0, np.where(succeeded, 1.0, -1.0))
        return rows.write(advantage=advantages).with_columns("draw", pair=pairs)


AGENT_RLVR = Recipe(
    name="agent_rlvr",
    source="arXiv:2506.11425",
    rollout=GuidedRetry(column="success"),
    advantage=AttemptPairs(),
    loss=Preference(beta=0.1),
)
