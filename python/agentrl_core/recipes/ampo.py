"""AMPO: in failed groups, learn from the teachers that the policy understands best (arXiv:2510.02227).

If no score of a group is above 0.6, each agent of `teachers` solves the task. By c, the mean probability of the
right answer's tokens behind the question and a teacher's trace (a model of the collector,
`Group.query("comprehension")`), the best min(number of teachers, 2) traces take the places of as many failures, which
chance chooses; the other traces are dropped. A trace has a score of at least 1. Advantages are not scaled; tokens of
traces have the factor p / (p + 0.1) in the place of a ratio, the others PPO's clip with a dual clip of 10, and the sum
is divided by the longest response. Of equal traces that of the earlier teacher is taken.

Equations:
    Read: the authors' code, the repository's README, and notes on the paper; its text was not read.

    - 3, trigger: `Taught(solved_above=0.6)`.
    - 4, number of replacements: `Taught(at_most=2)`.
    - 5, comprehension: left out: as C1; a model of the collector measures it, which may take the geometric mean.
    - C1, comprehension of the code: `Group.query("comprehension")`.
    - 6, advantage: `AtLeastOne`, then `GroupRelative(scale="none")`.
    - C2, split advantage: left out: an option of the code that its script does not set.
    - C3, off-policy token loss: `Expert(0.1)`, the policy's own probability.
    - C4, mixed loss: `Policy(aggregate="constant", constant=8192)`, with 0.001 of entropy.
    - 7, mixed objective of the paper: as C4; the notes on the paper weigh teacher rows alike, whatever their length.

Differs:
    - Sum over rows: not divided by their number in the code; here the mean over draws.
    - Entropy: its mean over tokens in the code; here divided like the rest of the loss.
    - Equal traces: the shorter one in the notes; here that of the earlier teacher.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Clip, Expert, Policy
from agentrl_core.reward import OutcomeScore
from agentrl_core.rollout import Group, RolloutSpec, RoundResult, Rounds, ask_agent, fill_template
from agentrl_core.weight import ExpertMask

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class Taught(Rounds):
    """Traces of teachers take the places of failures, where all failed; the draw column `taught` is 1 for them.

    Args:
        teachers: names of agents.
        question: what they are asked; `{task}` as in `recipes.agent_rlvr.AgentHint`.
        comprehension: the model of the collector that computes c of a trajectory.
        at_most: traces of a group.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ampo import Taught
        >>> Taught(teachers=("large", "larger")).names
        ['large', 'larger']
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"taught": ExtraColumn("trajectory")}

    solved_above: float = 0.6
    teachers: tuple[str, ...] = option(("teacher",), filled=True)
    question: str = option("{task}", filled=True)
    comprehension: str = option("comprehension", filled=True)
    at_most: int = option(2, at_least=1)

    @property
    def queried_models(self) -> tuple[str, ...]:
        """The model that measures how well a trace is understood."""
        return (self.comprehension,)

    @property
    def names(self) -> list[str]:
        """The teachers."""
        return list(self.teachers)

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """The first round; then traces, where it failed."""
        if not rounds:
            return self.members
        if not self.solved(rounds[0]).any():
            await self._teach(group, rounds[0])
        return None

    async def _teach(self, group: Group, failed: RoundResult) -> None:
        """Have the teachers solve it, and put the clearest traces in the places of failures."""
        traces = []
        for teacher in self.names:
            text = await ask_agent(group, fill_template(self.question, group, []), agent=teacher)
            if text:
                trace = group.start(facts={"taught": 1.0})
                await trace.turn(text)
                traces.append(trace)
        await group.run([trace for trace in traces if not trace.over])
        traces = [trace for trace in traces if trace.status in ("finished", "truncated")]
        if not traces:
            return
        clearest = np.argsort(-await group.query(self.comprehension, traces), kind="stable")[: self.at_most]
        places = sorted(range(len(failed.branches)), key=lambda place: group.uniform("place", place))
        group.drop([failed.branches[place] for place in places[: len(clearest)]], "taught")
        group.drop([trace for row, trace in enumerate(traces) if row not in clearest], "less clear")


@dataclass(frozen=True)
class AtLeastOne(BatchComponent):
    """Traces of teachers count as right: the score of a draw that was `taught` is at least 1.

    Example:
        >>> from agentrl_core.recipes.ampo import AtLeastOne
        >>> AtLeastOne().makes
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("taught"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws."""
        rows = Rows(batch, "draw")
        scores = rows.values("score")
        return rows.write(score=np.where(rows.flags("taught"), np.maximum(scores, 1.0), scores))


AMPO = Recipe(
    name="ampo",
    source="arXiv:2510.02227",
    rollout=Taught(),
    reward=(OutcomeScore(), AtLeastOne()),
    advantage=GroupRelative(scale="none"),
    weight=ExpertMask(),
    loss=Policy(clip=Clip(0.2, 0.2, 10.0), expert=Expert(0.1), aggregate="constant", constant=8192.0, entropy=0.001),
    minibatches=2,
    old_logprob="recomputed",
)
