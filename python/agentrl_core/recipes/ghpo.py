"""GHPO: retry tasks that no rollout solved, with part of their solution in the prompt (arXiv:2507.10628).

If no member of a group has an accuracy above 0, the group is dropped and rolled out again with the first quarter of the
reference solution (in characters) after the question. If again no member succeeds, the hint is half of the solution,
then three quarters; the group with three quarters is kept in any case. A task without a solution keeps its first group.
Hints are part of the prompt, so only the tokens sampled after them are trained. The advantage is (R - mean) / (std +
1e-4), without a KL penalty. The paper rewards a correct format with 0.5, besides 1 for a correct answer; here these
rewards are left to the environment and its facts.

Equations:
    Read: the authors' code, the abstract, and notes on the paper; its text was not read, so the mean and the KL of
    its objective are not known.

    - C1, difficulty detection: `HintLadder(column="success")`: no member of the group succeeded.
    - C2, hint: `HintLadder`, shares 0.25, 0.5 and 0.75 of the characters.
    - C3, reward: left out: the environment gives 1 for a correct answer and 0.5 for a correct format.
    - C4, advantage: `GroupRelative(eps=1e-4)`.
    - C5, loss: `Policy`, mean over the tokens of the batch; the hint is part of the prompt.

Differs:
    - Length of a hint: rounded half to even in the code, rounded down here.
    - Instruction before the hint: the wording is different.
    - Cold start: optional in the paper (no hints in the first 20 steps, according to public reviews of it); off in
      the code and here; `HintLadder(from_iteration=20)` turns it on.
    - Groups solved on a rung: the code restores their plain prompt if another group needs a longer hint; in the paper
      and here they keep their hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Policy
from agentrl_core.rollout import Group, RolloutSpec, RoundResult, Rounds, SolutionHint

_TEMPLATE = "{prompt}\n\nThe solution begins like this; go on from it:\n{text}"


@dataclass(frozen=True)
class HintLadder(Rounds):
    """Retry a task that no member solved, with a growing part of its solution in the prompt.

    The draw column `hint` is the share of the solution that was shown.

    Args:
        step: increase of the share from one group to the next.
        at_most: the largest share.
        from_iteration: first iteration with hints.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ghpo import HintLadder
        >>> HintLadder().shares
        [0.25, 0.5, 0.75]
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"hint": ExtraColumn("trajectory")}

    step: float = option(0.25, above=0, at_most=1)
    at_most: float = option(0.75, at_least=0, at_most=1)
    from_iteration: int = option(0, at_least=0)

    @property
    def shares(self) -> list[float]:
        """Return the shares of the hints, in the order of their use."""
        return [round(self.step * (rung + 1), 9) for rung in range(int(self.at_most / self.step + 1e-9))]

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Return the next round, with a longer hint if the last round failed; None if there is no next round."""
        if not rounds:
            return self.members
        hinted = len(rounds) <= len(self.shares) and group.task.solution and group.iteration >= self.from_iteration
        if self.solved(rounds[-1]).any() or not hinted:
            return None
        group.drop(rounds[-1].branches, "no rollout solved the task")
        share = self.shares[len(rounds) - 1]
        return RolloutSpec(hint=SolutionHint(share=share), template=_TEMPLATE, fact="hint", value=share)


GHPO = Recipe(
    name="ghpo",
    source="arXiv:2507.10628",
    rollout=HintLadder(column="success"),
    advantage=GroupRelative(eps=1e-4),
    loss=Policy(),
)
