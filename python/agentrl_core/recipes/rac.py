"""RaC: train on recoveries and the corrections after them, not on the mistakes before (arXiv:2509.07953).

    L = mean over the tokens of recoveries and corrections of - log p

If a rollout fails at a step that the environment flags, a branch continues after that step with an action that reverts
it (`undo`; the environment has to support this action). From there the policy continues for at most 4 turns. If it
succeeds, the recovery and the correction are imitated. The failed part is context, and other rollouts are not trained.
Half of a batch are recoveries of earlier iterations. In the paper a person recovers and corrects a robot; this recipe
applies the idea to agents.

Equations:
    Read: a public port, and notes of others; the paper's text was not read.

    - N1, record: `UndoFailedStep`; a correction that fails is dropped.
    - N2, mask: `Branch.fork(train_prefix=False)`, and `Train(where=Where(column="recovered"))`.
    - N3, loss: `Imitation("token_mean")`.
    - N4, rounds: `Mix`; not computed: the example counts frames of a data set, the memory counts trajectories to draw
      from.

Differs:
    - Intervention: by a person in the paper, at any time; here by one action and the policy, after a flagged step.
    - Failing segment: masked in the notes and here; trained in the port.
    - Rounds: training on all data again in the paper; half of each batch here.

Source: "RaC: robot learning for long-horizon tasks by scaling recovery and correction" (arXiv:2509.07953).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core import Recipe
from agentrl_core.component import Where, option
from agentrl_core.env import ExtraColumn, StepFlag
from agentrl_core.exceptions import AgentRLWarning
from agentrl_core.loss import Imitation, Train
from agentrl_core.replay import Memory, Mix
from agentrl_core.rollout import Branch, ErrorLocation, Group, Repair


@dataclass(frozen=True)
class UndoFailedStep(Repair):
    """Fork up to `at_most` failed members after the failed step, undo this step, and let the policy correct it.

    If the environment refuses the undo (it flags a format or tool error, or the episode ends), the branch is dropped
    with a warning, because its recovery did not happen. The program does not notice if an environment accepts any text
    without a flag. A branch whose correction does not solve the task is dropped too. The draw column `recovered` is 1
    for a recovery.

    Args:
        undo: the action that reverts the last step in the environment.
        turns: largest number of turns of the correction, after which the branch is truncated.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.rac import UndoFailedStep
        >>> UndoFailedStep(undo="back", at_most=4).final_group_size(group_size=8)
        8
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"recovered": ExtraColumn("trajectory")}

    undo: str = option("<undo>", filled=True)
    turns: int = option(4, at_least=1)

    async def repair(self, group: Group, branch: Branch, fault: ErrorLocation) -> bool:
        """Run a recovery and a correction after the failed turn, and return whether they solve the task."""
        end = fault.step.turn + 1
        if end == len(branch.turns):
            return False  # the mistake ended the episode
        fork = branch.fork(at=branch.position_after(end), train_prefix=False, facts={"recovered": 1.0})
        turn = await fork.turn(self.undo)
        # If the undo did nothing, the policy would be trained on a recovery that did not happen.
        if turn.flags & (StepFlag.FORMAT_ERROR | StepFlag.TOOL_ERROR) or fork.status == "finished":
            group.drop([fork], "the environment refused the undo")
            answer = "ended the episode" if fork.status == "finished" else "flagged an error"
            warnings.warn(
                f"rac: undo={self.undo!r} is refused by the environment of domain {group.task.domain!r}, which "
                f"{answer}; the branch is dropped. Give the action with which this environment takes back the last "
                "step: UndoFailedStep(undo=...)",
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
        solved = bool((await group.score(self.column, [fork]))[0] > self.solved_above)
        if not solved:
            group.drop([fork], "the correction failed")
        return solved


RECOVERED = Where(column="recovered", at_least=0.5)

RAC = Recipe(
    name="rac",
    source="arXiv:2509.07953",
    rollout=UndoFailedStep(column="success", at_most=4),
    loss=Train(Imitation("token_mean"), where=RECOVERED),
    replay=Mix(Memory(where=RECOVERED), share=0.5, old_logprob="none"),
)
