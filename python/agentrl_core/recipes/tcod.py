"""TCOD: distil a teacher on the first k turns of the policy's own trajectories, with k growing.

The errors of a small policy add up over turns, until its teacher meets states that it cannot handle. So a trajectory
has at most k turns, and k grows (arXiv:2604.24005, its variant from front to back):

    k = min(k_start + floor(n / eta), T),   n = 1, 2, ...: the training step
    L = mean over trajectories of the sum over their tokens of KL(q || p)

k_start = 1, eta = 2 and T = 30 turns. The divergence is over the whole vocabulary:
`pack.run(policy, teacher=teacher)`. For a teacher on a server use its likeliest tokens:

    recipe = TCOD.replace(loss=loss.Divergence("constant", 1.0, beta=0.0, support="top"))
    batch = arl.annotate(batch, "teacher_logprob", teacher, top_k=64)

Needs: a teacher with the policy's tokenizer.

Equations:
    Read: the paper's text, and the authors' code.

    - 2, distillation: `Divergence(beta=0.0)`.
    - 3, loss of the first k turns: `Divergence("constant", 1.0)`, on the turns that `TemporalCurriculum` rolls out.
    - 4, pacing: `TemporalCurriculum.limit`.
    - 5, from back to front: left out: stored actions of the teacher lead to the last k turns of a success.
    - C1, loss of the code: an option: `Policy("step_mean")` and the advantage of `on_policy_distillation`, the
      log-ratio of the teacher to the policy at the sampled token.

Differs:
    - Direction: the paper writes forward KL; its code estimates the reverse KL (C1).
    - eta: 2 in the paper; 4 to 6 in the scripts.
    - Rollouts of a task: one in the code; here a group of the collector, whose members are not compared.
    - Context: in the code each turn is a row with a structured history; here a trajectory is one context.
    - Staleness: rollouts up to two versions old in the code; here the staleness of the collector,
      `LimitStaleness(2)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.component import option
from agentrl_core.loss import Divergence
from agentrl_core.rollout import Branch, Rollout


@dataclass(frozen=True)
class TemporalCurriculum(Rollout):
    """Limit the turns of a trajectory to min(start + floor(n / every), turns) in iteration n = 1, 2, ...

    A trajectory that is not over at its limit is truncated, and keeps its rewards so far. Evaluation has no limit.

    Args:
        start: k_start, the first limit.
        every: eta, iterations for one more turn.
        turns: T, the largest limit.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.tcod import TemporalCurriculum
        >>> [TemporalCurriculum().limit(iteration) for iteration in (0, 1, 2, 3, 100)]
        [1, 2, 2, 3, 30]
    """

    start: int = option(1, at_least=1)
    every: int = option(2, at_least=1)
    turns: int = option(30, at_least=1)

    def limit(self, iteration: int) -> int:
        """Return the largest number of turns of a trajectory; iterations count from 0."""
        return min(self.start + (iteration + 1) // self.every, self.turns)

    async def branch(self, branch: Branch) -> None:
        """Run turns until the trajectory is over or at its limit."""
        limit = self.limit(branch.group.key[0]) if branch.group.mode == "train" else None
        while not branch.over:
            if limit is not None and len(branch.turns) >= limit:
                branch.stop("the depth of this step", status="truncated")
                return
            await branch.turn()


TCOD = Recipe(
    name="tcod",
    source="arXiv:2604.24005",
    rollout=TemporalCurriculum(),
    loss=Divergence("constant", 1.0, beta=0.0, support="vocabulary"),
)
