"""RaC: to recover is learned, and to do better after it, not the mistake before (recovery and correction).

If a rollout fails at a step that the environment flags, it continues after that step, with an action that takes the
world back (`undo`, an action that the environment has to know). From there the policy goes on, for at most 4 turns. Of
the new trajectory the failing part is context, the recovery and the correction are trained. From "RaC: robot learning
for long-horizon tasks by scaling recovery and correction" (arXiv:2509.07953), whose segments are a human's; this is its
idea for agents.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.env import StepFlag
from agentrl_core.exceptions import AgentRLWarning
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, ErrorLocation, Group, Repair


@dataclass(frozen=True)
class Recovered(Repair):
    """Recoveries after the steps at which members failed.

    A branch in which the environment refuses the undo (it flags a format or tool error, or the episode ends) is
    dropped with a warning, so no recovery is trained that did not happen. An environment that takes any text without a
    flag is not noticed.

    Args:
        undo: the action that takes the environment back.
        turns: of the correction, at most; then it is truncated.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.rac import Recovered
        >>> Recovered(undo="back", at_most=4).final_group_size(group_size=8)
        8
    """

    undo: str = option("<undo>", filled=True)
    turns: int = option(4, at_least=1)

    async def repair(self, group: Group, branch: Branch, fault: ErrorLocation) -> bool:
        """After the failing turn, a recovery and a correction."""
        end = fault.step.turn + 1
        if end == len(branch.turns):
            return False  # the mistake ended the episode
        fork = branch.fork(at=branch.position_after(end), train_prefix=False)
        turn = await fork.turn(self.undo)
        # After an undo that did nothing the policy would be trained as if it had recovered.
        if turn.flags & (StepFlag.FORMAT_ERROR | StepFlag.TOOL_ERROR) or fork.status == "finished":
            group.drop([fork], "the environment refused the undo")
            warnings.warn(
                f"rac: undo={self.undo!r} is refused by the environment of domain {group.task.domain!r}, which flagged "
                "an error or ended the episode; the branch is dropped. Give the action that takes back its last step: "
                "Recovered(undo=...)",
                AgentRLWarning,
                stacklevel=2,
            )
            return False
        limit = end + 1 + self.turns

        async def correct(fork: Branch) -> None:
            while not fork.over and len(fork.turns) < limit:
                await fork.turn()
            if not fork.over:
                fork.stop("the correction is over", status="truncated")

        await group.run([fork], correct)
        return True


RAC = Recipe(
    name="rac",
    source="arXiv:2509.07953",
    rollout=Recovered(column="success", at_most=4),
    advantage=GroupRelative(),
    loss=Policy(),
    old_logprob="recomputed",
)
