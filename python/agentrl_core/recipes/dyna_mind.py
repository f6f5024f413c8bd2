"""Dyna-Mind (Dyna-GRPO): train an agent to simulate the results of its actions (arXiv:2510.09577).

Two kinds of iterations alternate. In even iterations half of the rollouts of a task are refined. In each turn of a
refined rollout, the policy first answers with a plan of at most five actions, and a fork of the environment runs it.
Then the policy answers again with the real futures in its context; this second answer is the action of the turn. An
answer without a plan is itself the action. The draw column `refined` marks refined rollouts. They are imitated, and the
ordinary rollouts of the same group are not trained:

    A = 1 if it is right and R > max(mean R of the ordinary ones, mean R of the refined ones), else 0

In odd iterations all rollouts are ordinary and are compared with each other: A = (R - mean) / std. The first stage of
the paper, supervised learning of summaries of search trees (ReSim), is left out. Two choices are proposals: the share
of refined rollouts, and training both answers as they were sampled.

Equations:
    Read: the paper's abstract, its reviews, and notes of others.

    - N1, search tree into reasoning: left out: supervised learning on responses of another model, before this recipe.
    - N2, SimRollout: `Simulate`, plans of at most five actions.
    - N3, advantage of a refined trajectory: `Refinement`.
    - N4, advantage of an ordinary trajectory: `Refinement(normalisation=Normalisation())`, std of n - 1.
    - N5, reward: left out: the environment gives it, as the reward of the trajectory.
    - N6, objective: `Policy`, with its default clip range 0.2.

Differs:
    - KL: the notes have a KL term to a reference, without a value of its beta; none here.
    - Refined answers: a reviewer of the paper asks whether the futures are removed from the context of the refined
      answer; the sources leave this open. Here they stay in it, as sampled.
    - Optimizer steps and clip range: not in the sources that were read; 1 and 0.2 here.
    - Phases: the sources that were read do not give the number of iterations of each; one here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group, keys
from agentrl_core.advantage import Normalisation
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Group, Rollout

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class Refinement(BatchComponent):
    """Imitate refined successes above both means of their group; compare rollouts in groups without refined ones.

    The draw column `refined` separates refined from plain draws. A refined draw has advantage 1 if it succeeded and its
    score is above two means: of the group's plain draws, and of its refined draws. Otherwise its advantage is 0. Plain
    draws in a group with refined ones have advantage 0. Draws without a score neither vote nor get a value.

    Args:
        normalisation: how the scores of plain draws are compared.

    Example:
        >>> from agentrl_core.recipes.dyna_mind import Refinement
        >>> Refinement().needs
        (draw('score'), draw('success'), draw('group_id'), draw('refined'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("success"), draw("group_id"), draw("refined"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    normalisation: Normalisation = Normalisation()

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        score, groups, refined = rows.values("score"), rows.keys("group_id"), rows.flags("refined")
        kinds = keys.composite(groups, refined.astype(np.int64))
        has_refined = group.statistics(refined.astype(np.float64), groups).most[groups] > 0
        advantages = self.normalisation.compare(score, kinds, valid=rows.valid & ~has_refined)
        # The larger of the two means of a group; a kind without a mean is ignored.
        means = group.statistics(score, kinds, valid=rows.valid).mean[kinds]
        larger_mean = group.statistics(means, groups, valid=np.isfinite(means)).most[groups]
        worthy = refined & rows.valid & rows.flags("success") & (score > larger_mean)
        return rows.write(advantage=np.where(refined, worthy, advantages))


@dataclass(frozen=True)
class Simulate(Rollout):
    r"""In even iterations, run the plans of half of the members, then query these members again with the results.

    A plan is the text between `<plan>` and `</plan>`, one action a line.

    Args:
        depth: largest number of actions of a plan that are run.
        reply: context for the second answer; `{futures}` is replaced by the actions, each with its observation.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.dyna_mind import Simulate
        >>> Simulate(depth=2).plan("I would <plan>look\ngo north\ngo south</plan>")
        ['look', 'go north']
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"refined": ExtraColumn("trajectory")}

    depth: int = option(5, at_least=1)
    reply: str = option("Your plan leads to:\n{futures}\nSay what you do now.", filled=True)

    def plan(self, text: str) -> list[str]:
        """Return the first actions of the plan in an answer, at most `depth`."""
        found = re.search(r"<plan>(.*?)</plan>", text, re.DOTALL)
        lines = found.group(1).splitlines() if found else []
        return [line.strip() for line in lines if line.strip()][: self.depth]

    async def group(self, group: Group) -> None:
        """Run all members; in even iterations of training, half of them (rounded down) simulate."""
        simulates = group.mode == "train" and group.key[0] % 2 == 0
        refined = group.start_many(group.size // 2 if simulates else 0, facts={"refined": 1.0})
        unrefined = group.start_many(group.size - len(refined), facts={"refined": 0.0})
        simulating = {branch.name for branch in refined}

        async def drive(branch: Branch) -> None:
            while not branch.over:
                if branch.name not in simulating or await self._foresees(branch):
                    await branch.turn()

        await group.run([*unrefined, *refined], drive)

    async def _foresees(self, branch: Branch) -> bool:
        """Sample an answer and run its plan; return whether the policy has to answer again.

        An answer without a plan is submitted as the action of the turn.
        """
        await branch.generate()
        if branch.over or not branch.has_open_action:
            return not branch.over
        actions = self.plan(branch.path.text)
        here = branch.path.here
        if not actions or here is None:
            await branch.submit()
            return False
        simulation = branch.fork(at=here)
        futures = []
        for action in actions:
            turn = await simulation.turn(action)
            futures.append(f"{action}: {turn.observation if turn.observation is not None else 'the end'}")
            if simulation.over:
                break
        simulation.drop("simulated")
        branch.inject(self.reply.replace("{futures}", "\n".join(futures)))
        return True


DYNA_MIND = Recipe(
    name="dyna_mind", source="arXiv:2510.09577", rollout=Simulate(), advantage=Refinement(), loss=Policy()
)
