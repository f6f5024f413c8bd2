"""UI-S1: train multi-turn agents on recorded trajectories of experts, without a live environment (arXiv:2509.11543).

A rollout acts on the expert's observations; `matched` (step column, 0 or 1) marks steps that equal the expert's step.
The return of a step sums its own and later rewards, discounted by 0.5, up to and including the first step that did
not match. A step is compared with the same step of the other rollouts, and the trajectory with its group:

    A = (G_t - mean) / (std + 1e-6) over the group's steps t  +  (R - mean) / (std + 1e-6) over the group

Groups whose first returns hardly vary (population standard deviation of at most 0.3) are masked, except groups of a
single rollout. The public code replaces such groups during collection; here admission only reads scores, so the
groups are masked in the batch. The code's mode `mean_norm` has `scale="none"` in both links. The code's episode part
compares the rewards of all steps instead of the trajectories' scores: use
`GroupRelative(column="reward", level="step", singleton="raw")` in place of the first link.

A rollout follows an expert's trajectory (`ExpertSpine`). If an action differs, the expert's action replaces it in the
history (a patch), at most twice; the next mistake ends the rollout. The environment answers every action with the
expert's next observation. A patch is the expert's action alone (`thought_free`); patches that add a thought are not
supported.

Equations:
    Read: the paper's sections 3.2 to 3.4 and the public code.

    - 7, semi-online step: `ExpertSpine`.
    - T1, patch: `ExpertSpine(patches=2)`, the expert's action alone.
    - 8, reward: left out: it belongs to the environment, which can check format, type and position of an action.
    - 9, return: `MatchedReturns(gamma=0.5)`.
    - 10, step advantage: the second `GroupRelative`.
    - 11, episode advantage: the first `GroupRelative`, of the scores of trajectories, which are their total returns.
    - 12, advantage: the sum of both, with omega 1.
    - 13, objective: `Policy(kl=KL(1e-4))`, mean over tokens.
    - P1, dynamic sampling: `GroupFilter(band=Band(std_above=0.3))`, on the returns of first steps.
    - C1, return in the code: `MatchedReturns(with_mismatch=False)`: earlier steps do not get the reward of a
      mismatch.
    - C2, episode advantage in the code: an option, `GroupRelative(column="reward", level="step", singleton="raw")`.

Differs:
    - Regeneration of groups: left out; the code samples until a group varies enough; here the group is masked.
    - Patches with a thought beside the action: left out, they need another model.
    - Clip range: not found in the sources; 0.2 here.
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
    """Compute the return of each step, up to the first step that does not match the expert.

        matched_return = G_t = r_t + gamma * G_{t+1} if step t matched, else r_t

    So the reward of the first mismatch is the last that counts; in the public code it only counts for its own step.

    The draw column `first_return` is G of the first step; groups are filtered by it. If a step has no reward, r = 0.

    Args:
        column: step column of the rewards.
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
        first[rows.draws[::-1]] = to_come[::-1]  # in reverse order, so the first step of a draw is kept
        batch = rows.write(matched_return=to_come)
        return Rows(batch, "draw").write(first_return=first)


@dataclass(frozen=True)
class ExpertSpine(Rollout):
    """Roll out along an expert's trajectory, and continue after a limited number of mistakes.

    A step that differs from the expert's step (fact `matched` is 0) is trained as it was sampled. In the context of
    later steps, the expert's action from `Task.solution` replaces it. The mistake after the last patch ends the
    trajectory.

    Args:
        patches: largest number of replaced actions of a trajectory; None: any number.
        matched: name of the fact.

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
        """Run turns; after a mistake, replace the action by the expert's action in the context."""
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
        """Return the history, with the expert's actions in the patched turns."""
        solution = branch.group.task.solution
        context: list[Content | Turn] = list(branch.prompt_messages)
        for turn in branch.turns:
            expert = solution[turn.index] if turn.index < len(solution) else ""
            expert_message: Message = {"role": "assistant", "content": expert}
            context += [expert_message if turn.index in patched else turn, turn.observation or ""]
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
