"""ActiveVLN: resample failed groups; an option starts rollouts after ever fewer expert steps (arXiv:2509.12618).

There are three parts, of which this recipe switches on the first two:

- A trajectory ends as a failure when it takes more than min(2 n, 120) steps of its own, rounded down, where n is the
  number of steps that the expert still needs. It also ends as a failure after 40 turns, less one turn for every three
  expert steps at its start (rounded up).
- A group without a successful rollout is dropped and sampled again, at most twice. `expert=True` then adds the expert's
  own trajectory to a group that still fails.
- `warm_up=W`: episodes start after the expert's first steps, which are not trained. Of the expert's N steps

      n = n_min + (N - n_min) f,    f = (log(t) / log(W + 1))^2    in iteration t = 1, 2, … of W

  are left to the policy, rounded down. A share `from_scratch` of the groups, and all groups after iteration W, start at
  the beginning.

The environment rewards success, scaled by the distance from the goal; its tasks contain the expert's steps
(`Task.solution`). The step fact `steps` is the number of steps that a turn took; without it a turn counts as one step.

Equations:
    Read: the public code and the abstract; the paper's text was not read.

    - C1, budgets: `ResampleFailedGroups.budgets`.
    - C2, end: `ResampleFailedGroups.branch` for the budgets; not computed: the environment checks for stops and
      malformed turns.
    - C3, reward: left out: the environment computes it, because it knows the distance.
    - C4, path similarity: left out: the environment knows both paths; the weight of this term is 0 in the script.
    - C5, resampling: `ResampleFailedGroups(attempts=2)`.
    - C6, expert prefix: `ResampleFailedGroups.left`; off here, as in the settings; `warm_up=W` switches it on.
    - C7, advantage: `GroupRelative`; the advantage in a group of one is 0 here, and its reward in verl
      (`singleton="raw"`).
    - C8, loss: `Policy(clip=Clip(0.2, 0.28))`, mean over tokens, no KL.

Differs:
    - Mean: machine-made reviews of the paper write GRPO's mean over the tokens of a rollout and then over rollouts,
      `Policy(aggregate="sequence_mean")`; the script takes the mean over all tokens, as here. Which one the paper uses
      is open.
    - Turns over the budget: the code samples one more turn and ignores it; here it is not sampled.
    - Steps over the budget: the code ends the episode in the middle of a turn; here the turn is finished.
    - Imitation before RL: left out: it needs the expert's trajectories; to use it, add
      `Train(Imitation("token_mean"), stage="warm_start")`.
    - Temperature of sampling: 1.2 in the script; here the collector's.
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
class ResampleFailedGroups(Rounds):
    """Resample groups without a successful rollout, with budgets and expert prefixes as in the module docstring.

    The draw column `expert` is 1 for the expert's trajectory.

    Args:
        attempts: how often a group is sampled again, at most.
        expert: whether the expert's trajectory is added to a group that still fails.
        tolerance: steps that a trajectory may take for each step that the expert still needs. Without an expert, a
            trajectory may take `steps` steps.
        steps: largest number of steps of a trajectory, without the expert's.
        turns: largest number of turns of a trajectory, including those of the expert.
        turn_steps: number of expert steps that count as one turn.
        warm_up: W, the number of iterations that start with the expert's steps; 0: none.
        at_least: n_min, the smallest number of steps left to the policy.
        power: exponent in f.
        from_scratch: share of the groups that start at the beginning even during the warm-up.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.active_vln import ResampleFailedGroups
        >>> program = ResampleFailedGroups(warm_up=8)
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
        """Return how many of the expert's steps are left to the policy in an iteration."""
        if iteration >= self.warm_up or steps <= self.at_least:
            return steps
        share = float((math.log(iteration + 1) / math.log(self.warm_up + 1)) ** self.power)
        return math.floor(round(self.at_least + (steps - self.at_least) * share, 9))

    def budgets(self, remaining: int, *, given: int) -> tuple[int, int]:
        """Return the numbers of steps and turns that a trajectory may take.

        Args:
            remaining: steps that the expert still needs; 0 if there is no expert.
            given: number of expert steps at the start of the trajectory.
        """
        steps = min(int(self.tolerance * remaining), self.steps) if remaining else self.steps
        return steps, self.turns - math.ceil(given / self.turn_steps)

    async def branch(self, branch: Branch) -> None:
        """Take turns until the episode is over or a budget is used up."""
        expert_steps = len(branch.turns)
        most_steps, most_turns = self.budgets(
            max(len(branch.group.task.solution) - expert_steps, 0), given=expert_steps
        )
        steps = 0
        while not branch.over and len(branch.turns) - expert_steps < most_turns:
            steps += int((await branch.turn()).facts.get("steps", 1))
            if steps > most_steps and not branch.over:
                branch.stop("out of steps", status="truncated")
        if not branch.over:
            branch.stop("out of turns", status="truncated")

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Return the members, at most `attempts` more times while no rollout succeeds.

        After that, return the expert's trajectory if `expert` is set and the group still fails.
        """
        steps = len(group.task.solution)
        if not rounds or (len(rounds) <= self.attempts and not self.solved(rounds[-1]).any()):
            if rounds:
                group.drop(rounds[-1].branches, "no success")
            policy_steps = self.left(steps, group.iteration)
            if policy_steps == steps or group.uniform("from scratch") < self.from_scratch:
                return self.members
            # Half a step more, so that `SolutionHint` rounds the share down to exactly the given steps.
            share = (steps - policy_steps + 0.5) / steps
            return replace(self.members, prefill=SolutionHint(share=share, unit="actions"))
        solved = any(self.solved(result).any() for result in rounds)
        if not self.expert or solved or not steps or len(rounds) > self.attempts + 1:
            return None
        return RolloutSpec(1, prefill=SolutionHint(), prefill_trained=True, fact="expert")


ACTIVE_VLN = Recipe(
    name="active_vln",
    source="arXiv:2509.12618",
    rollout=ResampleFailedGroups(column="success"),
    advantage=GroupRelative(),
    loss=Policy(clip=Clip(0.2, 0.28)),
)
