"""Agent-RLVR: retry failed tasks with guidance that training does not see, and prefer successes (arXiv:2506.11425).

If no rollout of a group succeeds, the agent `teacher` is asked for guidance about the first attempt, and as many again
are made with it in their prompt. They are trained as if they had been asked the task alone (`Branch.with_prompt`),
against the failures: DPO with beta = 0.1 on pairs of a success and a failure of the same task. Pairs, at most four for
a task, are each success with the failure whose length is nearest to its own, each draw in one pair at most. The paper
does not state how pairs are made, beta, or that guidance is taken out; these are chosen here.

Equations:
    Read: the abstract, and summaries of others; the paper's text was not read.

    - N1, loop: `Guided`: a group without a success gets a second round.
    - N2, pairs: `NearestPairs`, at most four of a task and a draw in one pair; the notes join every success with every
      failure.
    - N3, DPO: `Preference(beta=0.1)`, of sums over trained tokens.

Differs:
    - Pairs: see N2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
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
    """A hint from another agent, which sees the task and an attempt.

    Args:
        agent: who is asked: the name of an agent of the collector; one without an engine of its own is spoken for by
            the policy.
        question: what it is asked. `{task}` becomes the task's question, `{solution}` its solution, and `{attempt}`
            the text of the first of the branches that the advice is about.

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
        """The answer; an empty text if the agent answers nothing."""
        text = await ask_agent(
            group, fill_template(self.question, group, of), agent=self.agent, about=next(iter(of), None)
        )
        return Hint((text,)) if text else None


@dataclass(frozen=True)
class Guided(Rounds):
    """Try a task that no rollout solved again, with the advice of a teacher that training does not see.

    The draw column `guided` is 1 for what was made so.

    Args:
        guided: members of the second round.

    Example:
        >>> from agentrl_core.recipes.agent_rlvr import Guided
        >>> sorted(Guided().facts)
        ['guided']
    """

    guided: RolloutSpec = RolloutSpec(hint=AgentHint(), train_without_hint=True, fact="guided")  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        """Declare the facts of both kinds."""
        super().__post_init__()
        object.__setattr__(self, "facts", {**self.facts, **self.guided.facts})

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """The guided ones, once, where the others failed."""
        if not rounds:
            return await super().next_round(group, rounds)
        return self.guided if len(rounds) == 1 and not self.solved(rounds[0]).any() else None


@dataclass(frozen=True)
class NearestPairs(BatchComponent):
    """Pair each success with the failure of its group whose length is nearest: draw column `pair`, advantage 1 and -1.

    Successes are served in order; of failures as near the first one is taken. A draw is in one pair at most; the others
    have pair -1 and advantage 0.

    Args:
        at_most: pairs of a group.

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
        won, lengths, groups = rows.flags("success"), rows.values("trained_tokens"), rows.keys("group_id")
        counted = rows.valid & rows.is_known("success") & (batch.column("trained", "draw") != 0)
        pairs = np.full(len(rows), -1, np.int64)
        found = 0
        for group in np.unique(groups[counted]):
            failures = np.flatnonzero(counted & (groups == group) & ~won)
            for success in np.flatnonzero(counted & (groups == group) & won)[: self.at_most]:
                if not len(failures):
                    break
                nearest = int(np.argmin(np.abs(lengths[failures] - lengths[success])))
                pairs[[success, failures[nearest]]] = found
                failures = np.delete(failures, nearest)
                found += 1
        advantages = np.where(pairs < 0, 0.0, np.where(won, 1.0, -1.0))
        return rows.write(advantage=advantages).with_columns("draw", pair=pairs)


AGENT_RLVR = Recipe(
    name="agent_rlvr",
    source="arXiv:2506.11425",
    rollout=Guided(column="success"),
    advantage=NearestPairs(),
    loss=Preference(beta=0.1),
)
