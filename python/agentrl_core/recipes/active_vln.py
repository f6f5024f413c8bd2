"""ActiveVLN: resample failed groups, and start rollouts with ever fewer of an expert's steps (arXiv:2509.12618).

Three parts, of which the first two are on here:

- a trajectory ends as a failure after min(2 * n, 120) turns of its own, n those that the expert still needs;
- where nobody of a group succeeds it is dropped and made anew, at most twice; `expert=True` then adds the expert's own
  trajectory to one that still fails;
- `warm_up=W`: episodes begin after the expert's first steps, which are not trained. Of the expert's N steps

      n = n_min + (N - n_min) f,    f = (log(t) / log(W + 1))^2    in iteration t = 1, 2, … of W

  are left to the policy (floor), but for a share `from_scratch` of the groups and all groups later.

The environment pays success, scaled by the distance from the goal; its tasks have the expert's steps (`Task.solution`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.env import ExtraColumn
from agentrl_core.loss import Policy
from agentrl_core.rollout import Branch, Group, RolloutSpec, RoundResult, Rounds, SolutionHint


@dataclass(frozen=True)
class Anew(Rounds):
    """Drops a group of which nobody succeeded and makes it anew; the other parts are those of the file.

    The draw column `expert` is 1 for a trajectory that is the expert's.

    Args:
        attempts: how often a group is made anew.
        expert: whether the expert's trajectory joins a group that still fails.
        tolerance: turns of a trajectory's own for each that the expert still needs; a task without an expert has
            `turns` of them.
        turns: the most turns of a trajectory's own.
        warm_up: W: how many iterations begin with the expert's steps; 0: none.
        at_least: n_min.
        power: of f.
        from_scratch: the share of the groups that begin at the beginning anyway.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.active_vln import Anew
        >>> program = Anew(warm_up=8)
        >>> program.left(10, iteration=2)  # 2 + 8 (log 3 / log 9)^2 = 2 + 8 / 4
        4
        >>> program.left(10, iteration=8)
        10
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"expert": ExtraColumn("trajectory")}

    attempts: int = option(2, at_least=0)
    expert: bool = False
    tolerance: float = option(2.0, above=0)
    turns: int = option(120, at_least=1)
    warm_up: int = option(0, at_least=0)
    at_least: int = option(2, at_least=1)
    power: float = option(2.0, above=0)
    from_scratch: float = option(0.0, at_least=0, at_most=1)

    def left(self, steps: int, iteration: int) -> int:
        """How many of the expert's steps are left to the policy in an iteration."""
        if iteration >= self.warm_up or steps <= self.at_least:
            return steps
        share = float((math.log(iteration + 1) / math.log(self.warm_up + 1)) ** self.power)
        return math.floor(round(self.at_least + (steps - self.at_least) * share, 9))

    async def branch(self, branch: Branch) -> None:
        """Turns until it is over or has used up its own."""
        begin, needed = len(branch.turns), len(branch.group.task.solution)
        most = min(math.ceil(self.tolerance * (needed - begin)), self.turns) if needed > begin else self.turns
        while not branch.over:
            await branch.turn()
            if len(branch.turns) - begin >= most and not branch.over:
                branch.stop("out of turns", status="truncated")

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """The group, as often as nobody succeeds."""
        steps = len(group.task.solution)
        if not rounds or (len(rounds) <= self.attempts and not self.solved(rounds[-1]).any()):
            if rounds:
                group.drop(rounds[-1].branches, "nobody succeeded")
            left = self.left(steps, group.iteration)
            if left == steps or group.uniform("from scratch") < self.from_scratch:
                return self.members
            # A share that gives back whole steps whatever the division rounds to.
            given = (steps - left + 0.5) / steps
            return replace(self.members, prefill=SolutionHint(share=given, unit="actions"))
        solved = any(self.solved(tried).any() for tried in rounds)
        if not self.expert or solved or not steps or len(rounds) > self.attempts + 1:
            return None
        return RolloutSpec(1, prefill=SolutionHint(), prefill_trained=True, fact="expert")


ACTIVE_VLN = Recipe(
    name="active_vln",
    source="arXiv:2509.12618",
    rollout=Anew(column="success"),
    advantage=GroupRelative(),
    loss=Policy(),
)
