"""UI-S1: multi-turn signal from recorded trajectories of experts, without a live environment (arXiv:2509.11543).

A rollout answers the expert's observations; `matched` (step column, 0 or 1) marks steps that equal the expert's.
The return of a step adds up what follows, discounted by 0.5, up to and with the first step that did not match. A step
is compared with the same step of the other rollouts, and the trajectory with its group:

    A = (G_t - mean) / (std + 1e-6) over the group's steps t  +  (R - mean) / (std + 1e-6) over the group

Groups whose first returns hardly vary (population standard deviation of at most 0.3) are left out, but for those of a
single rollout. In the public code such groups are replaced during collection; admission knows scores only, so here they
leave the batch. Its mode `mean_norm` has `scale="none"` in both links; its episode part compares the rewards of all
steps instead of the trajectories' scores: `GroupRelative(column="reward", level="step", singleton="raw")` in the place
of the first link. A rollout goes along an expert's trajectory (`ExpertSpine`): if it does something else, its
history is patched with what the expert did, twice at most, and then it ends. The environment answers every action with
what the expert saw next. Patches are the expert's action alone (`thought_free`); those with a thought beside it are not
here.

Equations:
    Read: the paper's sections 3.2 to 3.4 and the public code.

    - 7, semi-online step: `ExpertSpine`.
    - T1, patch: `ExpertSpine(patches=2)`, the expert's action alone.
    - 8, reward: left out: it belongs to the environment, which knows format, type and place of an action.
    - 9, return: `MatchedReturns(gamma=0.5)`.
    - 10, step advantage: the second `GroupRelative`.
    - 11, episode advantage: the first `GroupRelative`, of the scores of trajectories, which are their total returns.
    - 12, advantage: the sum of both, with omega 1.
    - 13, objective: `Policy(kl=KL(1e-4))`, mean over tokens.
    - P1, dynamic sampling: `GroupFilter(band=Band(std_above=0.3))`, of the returns of first steps.
    - C1, return in the code: `MatchedReturns(with_mismatch=False)`: a mismatch gives nothing to earlier steps.
    - C2, episode advantage in the code: an option, `GroupRelative(column="reward", level="step", singleton="raw")`.

Differs:
    - Regeneration of groups: left out, the code samples until a group varies enough; here it leaves the batch.
    - Patches with a thought beside the action: left out, they need another model.
    - Clip range: not seen; 0.2 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, returns
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option, step
from agentrl_core.env import Content, Message
from agentrl_core.loss import KL, Policy
from agentrl_core.reward import OutcomeScore
from agentrl_core.rollout import Branch, Rollout, Turn
from agentrl_core.select import Band
from agentrl_core.weight import GroupFilter

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class MatchedReturns(BatchComponent):
    """Return of each step, as long as the rollout did what the expert did.

        matched_return = G_t = r_t + gamma * G_{t+1} where step t matched, else r_t

    So the reward of the first mismatch is the last that counts; in the public code it counts for its own step alone.

    `first_return` of a draw is G of its first step, by which groups are filtered. A step that was paid nothing has r =
    0.

    Args:
        column: what each step was paid.
        matched: step column of 0 and 1.
        gamma: discount, 0 to 1.
        with_mismatch: whether the reward of the first mismatch counts for the steps before it.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ui_s1 import MatchedReturns
        >>> MatchedReturns().makes
        (step('matched_return'), draw('first_return'))
    """

    phase: ClassVar[str] = "reward"
    makes: ClassVar[tuple[Column, ...]] = (step("matched_return"), draw("first_return"))

    column: str = column_name("reward", level="step")
    matched: str = column_name("matched", level="step")
    gamma: float = option(0.5, at_least=0, at_most=1)
    with_mismatch: bool = True

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `matched_return` on steps and `first_return` on draws."""
        rows, draws = Rows(batch, "step"), Rows(batch, "draw")
        matched = rows.flags(self.matched)
        rewards = np.nan_to_num(rows.values(self.column), nan=0.0)
        ends = ~matched
        if not self.with_mismatch:
            ends |= ~np.append(matched[1:], False)[: len(rows)]
        to_come = returns.discounted(rewards, rows.draws, gamma=self.gamma, ends=ends)
        first = np.full(len(draws), np.nan)
        first[rows.draws[::-1]] = to_come[::-1]  # of the steps of a draw, the first one stays
        batch = rows.write(matched_return=to_come)
        return Rows(batch, "draw").write(first_return=first)


@dataclass(frozen=True)
class ExpertSpine(Rollout):
    """Trajectories along an expert's, which go on in spite of some mistakes.

    A step that is not the expert's (fact `matched`) stays as it is and is trained, and
    in the context of the next one stands what the expert did, `Task.solution`. The mistake after the last patch ends
    the trajectory.

    Args:
        patches: of a trajectory, at most; None: any number.
        matched: the fact.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ui_s1 import ExpertSpine
        >>> ExpertSpine(patches=1).final_group_size(group_size=8)
        8
    """

    patches: int | None = option(2, at_least=0)
    matched: str = option("matched", filled=True)

    async def branch(self, branch: Branch) -> None:
        """Turn by turn, each behind what the expert did where it did something else."""
        patched: set[int] = set()
        while not branch.over:
            turn = await branch.turn()
            if turn.over:
                return
            if not turn.facts.get(self.matched):
                if self.patches is not None and len(patched) >= self.patches:
                    branch.finish()
                    return
                patched.add(turn.index)
            if patched:
                await branch.rewrite(self.context(branch, patched))

    def context(self, branch: Branch, patched: set[int]) -> list[Content | Turn]:
        """The history, in which some turns are the expert's."""
        solution = branch.group.task.solution
        context: list[Content | Turn] = list(branch.prompt_messages)
        for turn in branch.turns:
            expert = solution[turn.index] if turn.index < len(solution) else ""
            done: Message = {"role": "assistant", "content": expert}
            context += [done if turn.index in patched else turn, turn.observation or ""]
        return context


UI_S1 = Recipe(
    name="ui_s1",
    source="arXiv:2509.11543",
    rollout=ExpertSpine(),
    reward=(OutcomeScore(), MatchedReturns()),
    advantage=(
        GroupRelative(level="step", voter="trajectory", singleton="raw"),
        GroupRelative(column="matched_return", level="step", group_by="group_id,step", add=True),
    ),
    weight=GroupFilter(column="first_return", band=Band(std_above=0.3, accept_single=True)),
    loss=Policy(kl=KL(1e-4)),
    minibatches=4,
)
