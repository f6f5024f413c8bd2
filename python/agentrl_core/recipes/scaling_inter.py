"""ScalingInter-RL: start with few turns, and allow more of them stage by stage (arXiv:2509.08755).

In iteration n a trajectory has at most h[min(floor(n / 100), S - 1)] turns, here 10, 20 and 30, as in SciWorld and
TextCraft; a truncated trajectory keeps its rewards. The rest is GRPO with a KL penalty of 0.001 (k3), an entropy bonus
of 0.001, and two epochs of four minibatches, as for TextCraft; the script for SciWorld has one epoch of two.

Equations:
    Read: the paper's section on ScalingInter-RL and its settings, and the authors' code. The paper writes
    h_(t+1) = h_t + delta, with delta an "adaptive increment" after some number of steps, without numbers.

    - C1, limit of turns: `Horizon`, which counts iterations from 0.
    - C2, rollout: `Horizon`; the turns of an episode do not wait for other episodes.
    - C3, reward and mask: the environment's reward of the trajectory; only the policy's tokens are trained.
    - C4, advantage: `GroupRelative(singleton="raw")`.
    - C5, loss: `Policy(kl=KL(0.001), entropy=0.001)`; the code bounds the KL of a token at 10, `KL(..., at_most=10)`.

Differs:
    - An episode whose environment fails: score 0 in the code, no score here.
    - Resuming: the code's stepper advances once too often after a resume at the border of a stage; not so here.

Needs: the model `reference`.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import KL, Policy
from agentrl_core.rollout import Branch, Rollout


@dataclass(frozen=True)
class Horizon(Rollout):
    """Limit the turns of a trajectory in stages: stages[min(n // every, len(stages) - 1)] in iteration n, from 0.

    A trajectory that is not over at its limit is truncated, and keeps its rewards. Source: ScalingInter-RL
    (arXiv:2509.08755), whose lists rise from 6 or 10 turns to 20 or 30 in three stages of 100 iterations.

    Args:
        stages: the limits of the stages.
        every: number of iterations of a stage.

    Raises:
        RecipeError: a limit is not a positive whole number.

    Example:
        >>> from agentrl_core.recipes.scaling_inter import Horizon
        >>> program = Horizon(stages=(10, 20, 30), every=100)
        >>> [program.limit(iteration) for iteration in (0, 99, 100, 250, 1000)]
        [10, 10, 20, 30, 30]
    """

    stages: tuple[int, ...] = option((10, 20, 30), at_least=1)
    every: int = option(100, at_least=1)

    def limit(self, iteration: int) -> int:
        """Return the largest number of turns of a trajectory in an iteration."""
        return self.stages[min(iteration // self.every, len(self.stages) - 1)]

    async def branch(self, branch: Branch) -> None:
        """Run turns until the trajectory is over or, in training, at its limit."""
        limit = self.limit(branch.group.key[0]) if branch.group.mode == "train" else None
        while not branch.over:
            if limit is not None and len(branch.turns) >= limit:
                branch.stop("the horizon of this stage", status="truncated")
                return
            await branch.turn()


SCALING_INTER = Recipe(
    name="scaling_inter",
    source="arXiv:2509.08755",
    rollout=Horizon(stages=(10, 20, 30), every=100),
    advantage=GroupRelative(singleton="raw"),
    loss=Policy(kl=KL(0.001), entropy=0.001),
    epochs=2,
    minibatches=4,
)
