"""DynaWeb: train web agents mostly in a world model, mixed with an expert's trajectories (arXiv:2601.22149).

The agent is trained mostly on dreams, which are rollouts in a world model, mixed with an expert's trajectories.

The source of each member of a group is drawn at random. With probability p_e the member is the expert's trajectory
(`Task.solution`, in the real environment). With probability p_r the policy acts in the real environment. Otherwise it
acts for at most H steps in the world model, which itself reports whether the task is done. A dream that has not ended
by then counts as a failure.

    dreams and real rollouts:  A = (r - mean) / std over both in the group,   clipped policy gradient
    the expert's tokens:       - mean of log p, added with a coefficient

Each term is a mean over its own tokens, so neither shrinks if the other term has more tokens.

Equations:
    Read: the paper's abstract, and pages of others about the paper, which contradict one another. No formula of the
    paper was read.

    - A1, world model: left out: it is trained before the agent; `rollout.WorldModelEnvironment` calls it.
    - A2, imagined rollout: `Dreams`; `Policy` over the agent's own tokens.
    - A3, interleaving: `Dreams`, which draws the source of each member at random.
    - N1, loss of the world model: left out: the same as A1.
    - N2, policy loss: left out: only one summary page mentions the ratio of a whole rollout;
      `DYNA_WEB.replace(loss=...)` with `Policy(ratio=Ratio("sequence"))` has it.

Differs:
    - Shares and horizon: not stated; 0.2 for the expert, none real, 8 steps here.
    - Loss of the expert's trajectories: not stated; the mean of - log p here.
    - Optimizer steps a batch: not stated; 1 here, so that the clip range does not act.

Pass the environments `{"real": world, "imagined": rollout.WorldModelEnvironment(world, model)}` to the collector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from agentrl_core import Batch, Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, Where, draw, option, token
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Imitation, Policy, Sum
from agentrl_core.rollout import Branch, Group, Rollout


@dataclass(frozen=True)
class Dreams(Rollout):
    """Draw the source of each member at random: the world model, the real environment or the expert.

    The draw column `demonstrated` is 1 for expert trajectories.

    Args:
        expert: p_e; for a task without a solution this share of members runs in the world model too.
        real: p_r.
        horizon: H, the largest number of steps of a dream.
        environment: name of the imagined environment.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.dyna_web import Dreams
        >>> Dreams(horizon=5)
        Dreams(horizon=5)
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"demonstrated": ExtraColumn("trajectory")}

    expert: float = option(0.2, at_least=0, at_most=1)
    real: float = option(0.0, at_least=0, at_most=1)
    horizon: int = option(8, at_least=1)
    environment: str = option("imagined", filled=True)

    async def group(self, group: Group) -> None:
        """Run all members concurrently."""
        experts: set[str] = set()
        branches = []
        for member in range(group.size):
            drawn = group.uniform("source", member)
            if drawn < self.expert and group.task.solution:
                branches.append(group.start(origin="expert", facts={"demonstrated": 1}))
                experts.add(branches[-1].name)
            elif self.expert <= drawn < self.expert + self.real:
                branches.append(group.start(facts={"demonstrated": 0}))
            else:
                branches.append(group.start(environment=self.environment, facts={"demonstrated": 0}))

        async def drive(branch: Branch) -> None:
            if branch.name in experts:
                for action in group.task.solution:
                    if not branch.over:
                        await branch.turn(action)
                return
            while not branch.over and (branch.origin == "generated" or len(branch.turns) < self.horizon):
                await branch.turn()
            branch.stop("the dream reached its horizon", status="truncated")

        await group.run(branches, drive)


@dataclass(frozen=True)
class ImitateExpertDraws(BatchComponent):
    """Set the advantage of the expert's draws to 0 and the stream `expert` of their tokens to 1, for imitation only.

    Example:
        >>> from agentrl_core.recipes.dyna_web import ImitateExpertDraws
        >>> ImitateExpertDraws().needs
        (draw('advantage'), draw('demonstrated'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("demonstrated"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"), token("expert"))

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with `advantage` on draws and `expert` on tokens."""
        expert = batch.column("demonstrated", "draw") == 1
        advantages = np.where(expert, np.float32(0), batch.column("advantage", "draw"))
        stream = expert[Rows(batch, "token").draws].astype(np.float32)
        return batch.with_columns("draw", advantage=advantages).with_columns("token", expert=stream)


DYNA_WEB = Recipe(
    name="dyna_web",
    source="arXiv:2601.22149",
    rollout=Dreams(),
    advantage=(GroupRelative(where=Where(column="demonstrated", at_most=0.5)), ImitateExpertDraws()),
    loss=Sum(
        Policy(),
        Imitation("token_mean", tokens="expert"),
        first_where=Where(column="demonstrated", at_most=0.5),
        second_where=Where(column="demonstrated", at_least=0.5),
    ),
)
