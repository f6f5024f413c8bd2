"""DR-PO: start episodes inside a reference solution, and let the policy continue from there.

With probability beta = 1 a rollout starts with the first tokens of the task's reference solution. Their share of the
solution is a uniform random number; they are not trained. PPO then trains on the tokens that the policy sampled, with
lambda 0.95, clip range 0.2, and a penalty of 0.05 in the rewards on the divergence from the reference. Policy and
critic make four passes over a batch, each of one optimizer step, so the clip range acts from the second pass on. The
texts of the paper have one action. A solution with several actions is cut inside the action that the uniform number
falls into; the actions before it are given whole.

Equations:
    Read: the paper's section 4 with algorithm 1, appendices D.2 and D.5 with table 5, and the public code.

    - 1, reward model: left out: it is trained beforehand, and the environment returns its score.
    - A1.7, reset: `ResetToSolution`.
    - A1.9, rows of the update: the prefix is written as untrained, so it is in neither loss nor denominator.
    - 4b, policy update: `Gae` and `Policy`.
    - T5, passes over a batch: `epochs=4`, each of one minibatch.
    - 4c, KL in the reward: `Gae(kl_coefficient=0.05)`.
    - C1, policy loss of the code: `Policy`, one mean over all sampled tokens.
    - C2, value loss of the code: `Value(clip=0.2)` for the model `critic`.
    - C3, advantages of the code: left out: the paper does not whiten; `GroupRelative(column="advantage", level="token",
      group_by="batch")` after `Gae` whitens.

Differs:
    - Tokens of the prefix: they are in the code's GAE and value loss, and in neither here, as in the paper.
    - Weight of the value loss: 0.1 relative to the policy loss in table 5; here the critic is a model with its own
      optimizer.
    - KL: 0.05 here too, in the rewards (`Gae(kl_coefficient=0.05)`); the loss has no KL term.
    - Length of a prefix: algorithm 1 draws the start uniformly from all states, so an episode may start at the prompt,
      as in this recipe. The program of appendix D.2 gives at least one token.

Source: arXiv:2404.08495. Needs: the models critic and reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.component import option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Policy, Train, Value
from agentrl_core.rollout import Branch, Group, Prefix, Rollout


@dataclass(frozen=True)
class ResetToSolution(Rollout):
    """Start rollouts inside the solution of a task (`Task.solution`), or at the prompt if it has none.

    The draw column `began` is the share of the solution that the rollout starts with.

    Args:
        share: beta, the probability that a rollout starts inside the solution.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.dr_po import ResetToSolution
        >>> ResetToSolution.cut(0.5, 3)
        (1, 0.5)
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"began": ExtraColumn("trajectory")}

    share: float = option(1.0, at_least=0, at_most=1)

    @staticmethod
    def cut(share: float, actions: int) -> tuple[int, float]:
        """Return the number of whole actions in a share of `actions` actions, and the share of the next action."""
        whole_actions = min(int(share * actions), actions - 1)
        return whole_actions, share * actions - whole_actions

    async def group(self, group: Group) -> None:
        """Roll out the requested number of members, each from its own start state."""
        branches = []
        for member in range(group.size):
            resets = bool(group.task.solution) and group.uniform("reset", member) < self.share
            began = group.uniform("cut", member) if resets else 0.0
            whole_actions = self.cut(began, len(group.task.solution))[0] if resets else 0
            prefix = Prefix(group.task.solution[:whole_actions], title="reference solution")
            branches.append(group.start(prefix=prefix, facts={"began": began}))
        await group.run(branches)

    async def branch(self, branch: Branch) -> None:
        """Write the beginning of a cut solution action, if any, then run turns until the branch ends."""
        await branch.begin()
        began = float(branch.record.facts["began"])
        if began > 0.0 and not branch.over:
            solution = branch.group.task.solution
            whole_actions, share = self.cut(began, len(solution))
            branch.write(solution[whole_actions], trained=False, ends=False, share=share)
        while not branch.over:
            await branch.turn()


DR_PO = Recipe(
    name="dr_po",
    source="arXiv:2404.08495",
    rollout=ResetToSolution(),
    advantage=Gae(lam=0.95, kl_coefficient=0.05),
    loss=(Train(Value("token_mean", clip=0.2), model="critic"), Policy()),
    epochs=4,
)
