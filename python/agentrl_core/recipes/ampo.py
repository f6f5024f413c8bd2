"""AMPO: in failed groups, learn from the teachers' traces that the policy understands best (arXiv:2510.02227).

If no score of a group is above 0.6, each agent of `teachers` solves the task. Traces are ranked by c, the geometric
mean probability of the right answer's tokens after the question and the trace. A model of the collector computes c
(`Group.query("comprehension")`). The best min(number of teachers, 2) traces replace the same number of failed rollouts,
which are drawn at random; the other traces are dropped. Of traces with equal c the shorter one ranks higher. A trace
has a score of at least 1. Advantages are computed as in GRPO, over the group after the replacement. The loss of a group
has two means:

    L = - 1/N_off sum_j 1/|o_j| sum_t f_t A_j - 1/T_on sum_i sum_t min(r A_i, clip(r, 0.8, 1.2) A_i),

over its N_off traces with f = p / (p + 0.1), and over the T_on tokens of its other rollouts. The total loss is the mean
over groups.

Equations:
    Read: the authors' code, the repository's README, and notes on the paper; its text was not read. Equations 5 to 7
    are as in the notes.

    - 3, trigger: `TeacherReplacement(solved_above=0.6)`.
    - 4, number of replacements: `TeacherReplacement(at_most=2)`.
    - 5, comprehension: `Group.query("comprehension")`; the collector's model computes it.
    - C1, comprehension of the code: the arithmetic mean; it needs another model of the collector.
    - 6, advantage: `AtLeastOne`, then `GroupRelative`; the code does not divide by the std,
      `GroupRelative(scale="none")`.
    - C2, split advantage: left out: an option of the code that its script does not set.
    - C3, off-policy token loss: `Expert(0.1)`, which reads the policy's own probability.
    - C4, mixed loss of the code: `weight=ExpertMask()` and `Policy(clip=Clip(0.2, 0.2, 10.0), expert=Expert(0.1),
      aggregate="constant", constant=8192.0, entropy=0.001)`: a sum over all tokens, and a dual clip.
    - 7, mixed objective of the paper: `SeparateMeans`; f reads only the policy's probability, as in the script.

Differs:
    - Ratio of traces: p divided by the teacher's probability in equation 7; p here, as in C3, since the teacher's
      probabilities are not recorded.
    - Several groups in a batch: equation 7 has one group; here the loss is the mean over groups.
    - Entropy: coefficient 0.001 in the code, in no equation of the notes; used here.
    - Pool: the source has correct traces made before training; here teachers are queried during the rollout, and their
      traces count as right even if the environment's reward is low.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option, sum_rows
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Clip, Expert, Policy
from agentrl_core.reward import OutcomeScore
from agentrl_core.rollout import Group, RolloutSpec, RoundResult, Rounds, ask_agent, fill_template
from agentrl_core.weight import ExpertMask

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class TeacherReplacement(Rounds):
    """Replace failed rollouts by teachers' traces if all members failed; the draw column `taught` is 1 for traces.

    Args:
        teachers: names of the agents that are teachers.
        question: prompt template of the teachers; `{task}` as in `recipes.agent_rlvr.AgentHint`.
        comprehension: name of the collector's model that computes c of a trajectory.
        at_most: largest number of traces in a group.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ampo import TeacherReplacement
        >>> TeacherReplacement(teachers=("large", "larger")).names
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
        """Return the name of the model that measures how well the policy understands a trace."""
        return (self.comprehension,)

    @property
    def names(self) -> list[str]:
        """Return the names of the teachers."""
        return list(self.teachers)

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Return the members of the first round; after it, add teachers' traces if all members failed."""
        if not rounds:
            return self.members
        if not self.solved(rounds[0]).any():
            await self._teach(group, rounds[0])
        return None

    async def _teach(self, group: Group, failed: RoundResult) -> None:
        """Query the teachers for traces, and replace failed rollouts by the traces that the policy understands best."""
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
        clear = await group.query(self.comprehension, traces)
        lengths = np.array([len(trace.tokens) for trace in traces])
        clearest = np.lexsort((lengths, -clear))[: self.at_most]
        places = sorted(range(len(failed.branches)), key=lambda place: group.uniform("place", place))
        group.drop([failed.branches[place] for place in places[: len(clearest)]], "replaced by a teacher's trace")
        group.drop([trace for row, trace in enumerate(traces) if row not in clearest], "less clear")


@dataclass(frozen=True)
class AtLeastOne(BatchComponent):
    """Raise the score of draws that are `taught` to at least 1, since teachers' traces count as right.

    Example:
        >>> from agentrl_core.recipes.ampo import AtLeastOne
        >>> AtLeastOne().makes
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("taught"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the raised `score` of draws."""
        rows = Rows(batch, "draw")
        scores = rows.values("score")
        return rows.write(score=np.where(rows.flags("taught"), np.maximum(scores, 1.0), scores))


@dataclass(frozen=True)
class SeparateMeans(BatchComponent):
    """Average teachers' traces and other rollouts of a group separately, in a loss that is the mean over draws.

    In a batch of N draws in K groups, the weight of a draw with n tokens is multiplied by N / (K N_off) if it is
    `taught`, otherwise by N n / (K T_on). The loss is then the mean over groups of two terms: a mean over traces, plus
    a mean over the tokens of other rollouts.

    Example:
        >>> from agentrl_core.recipes.ampo import SeparateMeans
        >>> SeparateMeans().makes
        (draw('weight'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (draw("taught"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the scaled `weight` of draws."""
        rows = Rows(batch, "draw")
        groups, taught = rows.keys("group_id"), rows.flags("taught")
        size = np.where(rows.valid, np.where(taught, rows.trained > 0, rows.trained), 0.0)
        kinds = 2 * groups + taught
        total_size = sum_rows(size, kinds, 2 * int(groups.max(initial=0)) + 2)[kinds]
        counted = size > 0
        scale = counted.sum() / max(len(np.unique(groups[counted])), 1)
        return rows.scale(scale * np.divide(size, total_size, out=np.zeros_like(size), where=counted))


AMPO = Recipe(
    name="ampo",
    source="arXiv:2510.02227",
    rollout=TeacherReplacement(),
    reward=(OutcomeScore(), AtLeastOne()),
    advantage=GroupRelative(),
    weight=(ExpertMask(), SeparateMeans()),
    loss=Policy(clip=Clip(0.2, 0.2), expert=Expert(0.1), aggregate="sequence_mean", entropy=0.001),
    minibatches=2,
    old_logprob="recomputed",
)
