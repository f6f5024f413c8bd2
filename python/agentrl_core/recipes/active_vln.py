"""ActiveVLN: resample failed groups, and start rollouts with ever fewer of an expert's steps (arXiv:2509.12618).

Three parts, of which the first two are on here:

- a trajectory ends as a failure when it takes more than min(2 n, 120) steps of its own, cut to a whole number, n those
  that the expert still needs, or after 40 turns, of which each three steps of the expert before it take one;
- a group in which no rollout succeeds is dropped and made anew, at most twice; `expert=True` then adds the expert's own
  trajectory to one that still fails;
- `warm_up=W`: episodes begin after the expert's first steps, which are not trained. Of the expert's N steps

      n = n_min + (N - n_min) f,    f = (log(t) / log(W + 1))^2    in iteration t = 1, 2, … of W

  are left to the policy (floor), but for a share `from_scratch` of the groups and all groups later.

The environment pays success, scaled by the distance from the goal; its tasks have the expert's steps (`Task.solution`).
The step fact `steps` is the number of steps that a turn took; without it a turn is one step.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, budgets: `Anew.budgets`.
    - C2, end: `Anew.branch` for the budgets; not computed: stops and malformed turns are judged by the environment.
    - C3, reward: left out: the environment pays it, which knows the distance.
    - C4, path similarity: left out: the environment knows both paths; its weight is 0 in the script.
    - C5, resampling: `Anew(attempts=2)`.
    - C6, expert prefix: `Anew.left`; off here as in the settings, `warm_up=W` switches it on.
    - C7, advantage: `GroupRelative`; a group of one is 0 here, and its reward in verl (`singleton="raw"`).
    - C8, loss: `Policy(clip=Clip(0.2, 0.28))`, mean over tokens, no KL.

Differs:
    - Mean: machine-made reviews of the paper write GRPO's mean over the tokens of a rollout and then over rollouts,
      `Policy(aggregate="sequence_mean")`; the script has the mean over tokens, as here. Open.
    - Turns over the budget: the code samples one more turn and ignores it; here it is not sampled.
    - Steps over the budget: the code ends in the middle of a turn; here the turn is finished.
    - Imitation before RL: left out: it needs the expert's trajectories; add
      `Train(Imitation("token_mean"), stage="warm_start")`.
    - Temperature of sampling: 1.2 in the script; the collector's here.
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
from agentrl_core.loss import Clip, Policy
from agentrl_core.rollout import Branch, Group, RolloutSpec, RoundResult, Rounds, SolutionHint


@dataclass(frozen=True)
class Anew(Rounds):
    """Drops a group in which no rollout succeeded and makes it anew; the other parts are those of the file.

    The draw column `expert` is 1 for a trajectory that is the expert's.

    Args:
        attempts: how often a group is made anew.
        expert: whether the expert's trajectory joins a group that still fails.
        tolerance: steps of a trajectory's own for each that the expert still needs; a task without an expert has
            `steps` of them.
        steps: the most steps of a trajectory's own.
        turns: the most turns of a trajectory, those of the expert included.
        turn_steps: steps of the expert that count as one turn.
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
        >>> program.budgets(9, given=7)
        (18, 37)
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"expert": ExtraColumn("trajectory")}

    attempts: int = option(2, at_least=0)
    expert: bool = False
    tolerance: float = option(2.0, above=0)
    steps: int = option(120, at_least=1)
    turns: int = option(40, at_least=1)
    turn_steps: int = option(3, at_least=1)
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

    def budgets(self, remaining: int, *, given: int) -> tuple[int, int]:
        """Return how many steps and turns a trajectory has.

        Args:
            remaining: steps that the expert still needs; 0 if no expert is known.
            given: steps of the expert before it.
        """
        steps = min(int(self.tolerance * remaining), self.steps) if remaining else self.steps
        return steps, self.turns - math.ceil(given / self.turn_steps)

    async def branch(self, branch: Branch) -> None:
        """Take turns until it is over or has no budget left."""
        given = len(branch.turns)
        most_steps, most_turns = self.budgets(max(len(branch.group.task.solution) - given, 0), given=given)
        steps = 0
        while not branch.over and len(branch.turns) - given < most_turns:
            steps += int((await branch.turn()).facts.get("steps", 1))
            if steps > most_steps and not branch.over:
                branch.stop("out of steps", status="truncated")
        if not branch.over:
            branch.stop("out of turns", status="truncated")

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Return the group again, as often as no rollout succeeds."""
        steps = len(group.task.solution)
        if not rounds or (len(rounds) <= self.attempts and not self.solved(rounds[-1]).any()):
            if rounds:
                group.drop(rounds[-1].branches, "no success")
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
    loss=Policy(clip=Clip(0.2, 0.28)),
)
