"""PROPS, applied to trees: branch next at turns that were sampled too rarely (arXiv:2311.08290).

Of 16 rollouts, 8 start at the prompt. The rest are branches that leave where the tree undersamples the policy
(`UnderSampled`), so that a group is closer to the policy than 16 independent samples. For this purpose the paper trains
a behaviour policy by gradient steps. It is left out, with its clip of 0.3 and its stop, because it would change while a
batch is sampled, every 16 actions. Here the paper's rule selects turns of a tree. The target's update is the paper's,
with a turn as an action:

    A_t = delta_t + 0.99 * 0.95 A_{t+1},   delta_t = r_t + 0.99 V_{t+1} - V_t,   normalised over the batch
    L = - mean of min(rho A, clip(rho, 0.8, 1.2) A) - 0.01 entropy,   until mean(rho - 1 - log rho) > 0.03

rho is the ratio to the policy at the start of the update, not to the policy that sampled.

Equations:
    Read: the public code, the abstract, a review of the paper, and notes by others. The paper's text was not read.

    - C1, behaviour's loss: left out: there is no behaviour policy; `UnderSampled` has the same aim.
    - C2, when: left out: as C1; `UnderSampled` reads the tree after each round.
    - C3, ROS: left out: the forerunner of C1.
    - C4, advantage: `Gae`, at the level of turns.
    - C5, target's loss: `Policy`, `GroupRelative` over the batch, std of n - 1; log-probs recomputed.
    - C6, whole: `Policy(entropy=0.01)`, `Value(clip=0.2)`, and `StopTraining`, which ends the updates above a
      divergence of 0.03.
    - C7, buffer: left out: it has one batch by default, as here; `replay.Mix` adds earlier ones.

Differs:
    - Stop: here after a step of the policy, when the critic has had all its steps; the code tests the last minibatch of
      an epoch, and stops both models.
    - Normalisation: over the mini-batch in the code; over the batch here.
    - Ratio: per action in the code; here per token of a turn, with a mean over turns.
    - Weight of the value loss: 0.5 beside the policy's loss in the code; here the critic is a model with its own
      optimizer.

Needs: the models critic and policy; rewards of turns.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import Policy, Train, Value
from agentrl_core.rollout import BudgetedRollout, Group
from agentrl_core.schedule import Above, StopTraining


@dataclass(frozen=True)
class UnderSampled(BudgetedRollout):
    """Branch next after turns that were sampled less often than their probability (after PROPS, arXiv:2311.08290).

    A few samples do not represent the policy: some actions occur more often than their probability, others less often.
    After `initial` branches from the prompt, each further branch leaves a turn of the tree. To find it, a walk from the
    prompt repeatedly follows the turn `a` with the smallest

        n(a) / sum(n)  -  p(a) / sum(p)

    over the turns tried at the same node, until it reaches a turn after which nothing was tried. `n` is the number of
    branches that ended after the turn, `p` is exp of the log-prob of its tokens, as sampled. If the last turn of the
    walk ended its episode, the branch leaves before it. So the branches of a group come closer to the policy, without
    more samples of turns that are already too frequent.

    PROPS itself changes the behaviour policy of a control task by gradient steps; this is its rule for a tree.

    Args:
        budget: final number of branches of a group. It replaces the collector's `group_size`.
        initial: branches that start at the prompt.
        parallel: number of branches that are added at once; the turns of later ones are chosen as if earlier ones had
            been visited.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.props import UnderSampled
        >>> UnderSampled(budget=16, initial=4).final_group_size(group_size=8)
        16
    """

    parallel: int = option(4, at_least=1)

    async def group(self, group: Group) -> None:
        """Run branches from the prompt, then branches that leave the tree."""
        await group.run(group.start_many(self.initial))
        while room := self.budget - group.count:
            tree = group.tree
            await group.run(tree.expand(tree.under_sampled(min(self.parallel, room))))


PROPS = Recipe(
    name="props",
    source="arXiv:2311.08290",
    rollout=UnderSampled(budget=16, initial=8),
    advantage=(
        Gae(level="step", gamma=0.99, lam=0.95, column="reward", outcome=""),
        GroupRelative(column="advantage", level="step", group_by="batch", eps=1e-8),
    ),
    loss=(
        Train(Value("step_mean", clip=0.2, level="step"), model="critic"),
        Train(Policy("step_mean", entropy=0.01)),
    ),
    hooks=StopTraining(when=Above("approximate_kl", 0.03), unit="steps"),
    old_logprob="recomputed",
    epochs=4,
    minibatches=64,
)
