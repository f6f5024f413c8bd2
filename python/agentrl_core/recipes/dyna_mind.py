"""Dyna-Mind (Dyna-GRPO): an agent learns to simulate what its actions lead to (arXiv:2510.09577).

Iterations alternate. In even ones half of the rollouts of a task are refined: in each turn the policy answers with a
plan of at most five actions, the environment runs it on the side, and the policy answers again with the real futures in
sight; that answer is the turn. The draw column `refined` marks those. An answer without a plan is the turn itself. A
refined rollout is imitated, and the ordinary ones beside it are not trained:

    A = 1 if it is right and R > max(mean R of the ordinary ones, mean R of the refined ones), else 0

In odd iterations all rollouts are ordinary, and they are compared with each other: A = (R - mean) / std. The first
stage of the paper, supervised learning of summaries of search trees (ReSim), is left out. Which share is refined is a
proposal, and so is that both answers are trained as they were sampled.

Equations:
    Read: the paper's abstract, its reviews, and notes of others.

    - N1, search tree into reasoning: left out: supervised learning on responses of another model, before this recipe.
    - N2, SimRollout: `Simulate`, plans of at most five actions.
    - N3, advantage of a refined trajectory: `Refinement`.
    - N4, advantage of an ordinary trajectory: `Refinement(normalisation=Normalisation())`, std of n - 1.
    - N5, reward: left out: it belongs to the environment, as reward of the trajectory.
    - N6, objective: `Policy`, its clip range 0.2 by default.

Differs:
    - KL: a term with beta to a reference in the notes, whose value they do not give; none here.
    - Refined answers: a reviewer of the paper asks whether it takes the futures out of their context again; open. Here
      they stay, as they were sampled.
    - Optimizer steps and clip range: not in what was read; 1 and 0.2 here.
    - Phases: how many iterations each lasts was not read; one here.
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
    """Has refined rollouts imitated if they are better than the others; compares plain ones in groups of their own.

    The advantage of a refined draw is 1 if it is worth imitating, else 0. The draw column `refined` separates the
    two. A refined draw is worth imitating if it succeeded and its score is above the mean of the group's plain draws
    and above that of its refined ones. Plain draws beside refined ones have advantage 0. Draws without a score neither
    vote nor get a value.

    Args:
        normalisation: how plain draws are compared.

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
        beside = group.statistics(refined.astype(np.float64), groups).most[groups] > 0
        plain = self.normalisation.compare(score, kinds, valid=rows.valid & ~beside)
        # The larger of the two means of a group; a kind that it lacks is no bar.
        means = group.statistics(score, kinds, valid=rows.valid).mean[kinds]
        bar = group.statistics(means, groups, valid=np.isfinite(means)).most[groups]
        worthy = refined & rows.valid & rows.flags("success") & (score > bar)
        return rows.write(advantage=np.where(refined, worthy, plain))


@dataclass(frozen=True)
class Simulate(Rollout):
    r"""In even iterations, runs what half of the members plan, and lets them answer again with its futures in sight.

    A plan is what stands between `<plan>` and `</plan>`, one action a line.

    Args:
        depth: the most actions of a plan that are run.
        reply: text for the policy; `{futures}` are the actions with the environment's answer to each.

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
        """The actions of the plan in an answer."""
        found = re.search(r"<plan>(.*?)</plan>", text, re.DOTALL)
        lines = found.group(1).splitlines() if found else []
        return [line.strip() for line in lines if line.strip()][: self.depth]

    async def group(self, group: Group) -> None:
        """Half of them, rounded down, with simulation, in even iterations of training."""
        simulates = group.mode == "train" and group.key[0] % 2 == 0
        refined = group.start_many(group.size // 2 if simulates else 0, facts={"refined": 1.0})
        plain = group.start_many(group.size - len(refined), facts={"refined": 0.0})
        simulating = {branch.name for branch in refined}

        async def drive(branch: Branch) -> None:
            while not branch.over:
                if branch.name not in simulating or await self._foresees(branch):
                    await branch.turn()

        await group.run([*plain, *refined], drive)

    async def _foresees(self, branch: Branch) -> bool:
        """A first answer, whose plan is run; whether the policy has to answer again. Without a plan it was the turn."""
        await branch.generate()
        if branch.over or not branch.has_open_action:
            return not branch.over
        actions = self.plan(branch.path.text)
        here = branch.path.here
        if not actions or here is None:
            await branch.submit()
            return False
        aside = branch.fork(at=here)
        futures = []
        for action in actions:
            turn = await aside.turn(action)
            futures.append(f"{action}: {turn.observation if turn.observation is not None else 'the end'}")
            if aside.over:
                break
        aside.drop("simulated")
        branch.inject(self.reply.replace("{futures}", "\n".join(futures)))
        return True


DYNA_MIND = Recipe(
    name="dyna_mind", source="arXiv:2510.09577", rollout=Simulate(), advantage=Refinement(), loss=Policy()
)
