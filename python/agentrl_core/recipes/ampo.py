"""AMPO: in failed groups, learn from the teachers that the policy understands best (arXiv:2510.02227).

If no score of a group is above 0.6, each agent of `teachers` solves the task. By c, the geometric mean probability of
the right answer's tokens after the question and a teacher's trace (a model of the collector,
`Group.query("comprehension")`), the best min(number of teachers, 2) traces replace as many failures, which are drawn at
random; the other traces are dropped. Of equal traces the shorter one is better. A trace has a score of at least 1.
Advantages are those of GRPO over the group after replacement. The loss of a group has two means:

    L = - 1/N_off sum_j 1/|o_j| sum_t f_t A_j - 1/T_on sum_i sum_t min(r A_i, clip(r, 0.8, 1.2) A_i),

over its N_off traces with f = p / (p + 0.1), and over its T_on other tokens; then the mean over groups.

Equations:
    Read: the authors' code, the repository's README, and notes on the paper; its text was not read. Equations 5 to 7
    are as in the notes.

    - 3, trigger: `Taught(solved_above=0.6)`.
    - 4, number of replacements: `Taught(at_most=2)`.
    - 5, comprehension: `Group.query("comprehension")`; the collector's model computes it.
    - C1, comprehension of the code: the arithmetic mean; another model of the collector.
    - 6, advantage: `AtLeastOne`, then `GroupRelative`; the code has no std, `GroupRelative(scale="none")`.
    - C2, split advantage: left out: an option of the code that its script does not set.
    - C3, off-policy token loss: `Expert(0.1)`, the policy's own probability.
    - C4, mixed loss of the code: `weight=ExpertMask()` and `Policy(clip=Clip(0.2, 0.2, 10.0), expert=Expert(0.1),
      aggregate="constant", constant=8192.0, entropy=0.001)`: a sum over all tokens, and a dual clip.
    - 7, mixed objective of the paper: `SeparateMeans`; f of the policy's probability alone, as the script.

Differs:
    - Ratio of traces: p over the teacher's probability in equation 7; here p, as C3, since a teacher's probabilities
      are not recorded.
    - Several groups in a batch: equation 7 has one; here the mean over groups.
    - Entropy: 0.001 in the code, and in no equation of the notes; it is kept.
    - Pool: correct traces made before training; here teachers are asked during the rollout, and their traces count as
      right whatever the environment's reward is.
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
        clear = await group.query(self.comprehension, traces)
        lengths = np.array([len(trace.tokens) for trace in traces])
        clearest = np.lexsort((lengths, -clear))[: self.at_most]
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


@dataclass(frozen=True)
class SeparateMeans(BatchComponent):
    """Give traces and rollouts of a group means of their own, in a loss that is the mean over draws.

    The weight of a draw of n tokens, of N draws in K groups, is N / (K N_off) if it was `taught`, else
    N n / (K T_on): the loss is then the mean over groups of a mean over traces and a mean over tokens.

    Example:
        >>> from agentrl_core.recipes.ampo import SeparateMeans
        >>> SeparateMeans().makes
        (draw('weight'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (draw("taught"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` on draws scaled."""
        rows = Rows(batch, "draw")
        groups, taught = rows.keys("group_id"), rows.flags("taught")
        size = np.where(rows.valid, np.where(taught, rows.trained > 0, rows.trained), 0.0)
        kinds = 2 * groups + taught
        whole = sum_rows(size, kinds, 2 * int(groups.max(initial=0)) + 2)[kinds]
        counted = size > 0
        scale = counted.sum() / max(len(np.unique(groups[counted])), 1)
        return rows.scale(scale * np.divide(size, whole, out=np.zeros_like(size), where=counted))


AMPO = Recipe(
    name="ampo",
    source="arXiv:2510.02227",
    rollout=Taught(),
    reward=(OutcomeScore(), AtLeastOne()),
    advantage=GroupRelative(),
    weight=(ExpertMask(), SeparateMeans()),
    loss=Policy(clip=Clip(0.2, 0.2), expert=Expert(0.1), aggregate="sequence_mean", entropy=0.001),
    minibatches=2,
    old_logprob="recomputed",
)
