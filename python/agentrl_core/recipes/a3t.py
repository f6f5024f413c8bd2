"""A3T: act at random now and then, and train on reasons that the agent finds afterwards (arXiv:2403.14589).

If no member of a group solves its task, the task gets four more attempts. At each step of an attempt, with probability
0.25, a random one of the commands that the environment lists is taken. An agent (`actre`) then writes reasons for this
command, and the policy is trained as if it had written them before acting. Trajectories are rewarded 1 and -1 by
outcome, balanced for each task over all trajectories collected so far. There is no importance ratio:

    w = 1 / n_solved of a solved trajectory, -0.5 / n_failed of a failed one; 0 if the task has no solved one
    L = - 1/M sum over trajectories of w sum over tokens of log pi

The reset to the base model before each round's training is left out: hooks run after the optimizer steps, but a round
is collected with the policy of the previous round. Load the base weights in your training loop, between the collection
and the optimizer steps.

Equations:
    Read: the abstract, and notes by others, which propose the balance. The paper's text was not read.

    - N1, annotation: `Autonomy`.
    - N2, policy gradient: `Policy`, `surrogate=Reinforce()`, a mean over trajectories of sums over tokens.
    - N3, balance for each task: `Contrast`.
    - N4, rounds: `Mix` of all trajectories collected before; one iteration is one round.

Differs:
    - Denominator: the number of trajectories, as in N2; N3 has none.
    - Base model: the paper trains it again in each round; here the policy continues to train, see above.
    - Random steps: the sources do not state how they are chosen; here each step of four attempts is random with
      probability 0.25.

Needs: a store; environments that list their commands; an agent `actre`; the fact success.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.component import BatchComponent, Column, Rows, draw, option, sum_rows
from agentrl_core.env import ExtraColumn, as_messages
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.replay import Memory, Mix
from agentrl_core.rollout import Branch, Group, RolloutSpec, RoundResult, Rounds, ask_agent

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class Autonomy(Rounds):
    """If no member solves the task, run attempts that act at random now and then, with reasons found afterwards.

    The draw column `composed` counts the random steps of an attempt.

    Args:
        members: rollouts of the first round.
        attempts: number of attempts for a task that no member solves.
        probability: probability of a random action at each step of an attempt.
        listed: text of an observation after which the possible actions follow, joined by `; `, to its end.
        question: prompt template for `actre`; `{context}` is the observation, `{action}` the action.
        template: template of the policy's turn, with `{reasons}` and `{action}`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.a3t import Autonomy
        >>> Autonomy().possible("A door is here. Commands: look; open door")
        ['look', 'open door']
    """

    facts: ClassVar[Mapping[str, ExtraColumn]] = {"composed": ExtraColumn("trajectory")}

    attempts: int = option(4, at_least=1)
    probability: float = option(0.25, at_least=0, at_most=1)
    listed: str = option("Commands: ", filled=True)
    question: str = option("{context}\n\nWhy is this the right thing to do now: {action}?", filled=True)
    template: str = option("{reasons}\n<action>{action}</action>", filled=True)

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Return the members of the first round, then run attempts if none of them solved the task."""
        if not rounds:
            return self.members
        if not self.solved(rounds[0]).any():
            await self.attempt(group)
        return None

    async def attempt(self, group: Group) -> None:
        """Run trajectories in which some actions are random."""
        live = group.start_many(self.attempts, facts={"composed": 0.0})
        while live:
            for branch in live:
                await branch.begin()
            live = [branch for branch in live if not branch.over]
            chosen = {branch.name: action for branch in live if (action := self.chosen(branch))}
            await group.turn([branch for branch in live if branch.name not in chosen])
            for branch in live:
                if branch.name in chosen:
                    await self.compose(group, branch, chosen[branch.name])
            live = [branch for branch in live if not branch.over]

    def chosen(self, branch: Branch) -> str:
        """Return a random one of the possible actions, or an empty string if the policy acts."""
        step, possible = len(branch.turns), self.possible(_seen(branch))
        if not possible or branch.uniform("random", step) >= self.probability:
            return ""
        return possible[int(branch.uniform("action", step) * len(possible))]

    async def compose(self, group: Group, branch: Branch, action: str) -> None:
        """Take a turn with the given action, after reasons that the agent `actre` writes for it."""
        question = self.question.replace("{context}", _seen(branch)).replace("{action}", action)
        reasons = await ask_agent(group, question, agent="actre", about=branch)
        branch.record.begin({"composed": branch.record.facts["composed"] + 1.0})
        await branch.turn(self.template.replace("{action}", action).replace("{reasons}", reasons))

    def possible(self, observation: str) -> list[str]:
        """Return the actions that an observation lists."""
        return [action for action in observation.partition(self.listed)[2].split("; ") if action]


def _seen(branch: Branch) -> str:
    """Return the text of a branch's last observation, or of its prompt before the first turn."""
    observation = branch.turns[-1].observation if branch.turns else branch.prompt_messages
    return str(as_messages(observation or "")[-1]["content"])


@dataclass(frozen=True)
class Contrast(BatchComponent):
    """Weight solved trajectories against failed ones, balanced for each task.

        advantage = 1 / n_solved of a solved draw, -failures / n_failed of a failed one; 0 if the task has no solved one

    Args:
        failures: total weight of the failed draws of a task, 0 or more.
        group_by: key columns; draws with equal keys are draws of one task.

    Example:
        >>> from agentrl_core.recipes.a3t import Contrast
        >>> Contrast().makes
        (draw('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("success"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    failures: float = option(0.5, at_least=0)
    group_by: str = option("task_id", filled=True)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        groups, solved = rows.keys(self.group_by), rows.flags("success")
        valid = rows.valid & rows.is_known("success")
        length = int(groups.max(initial=0)) + 1
        num_solved, num_failed = (sum_rows(valid & kind, groups, length)[groups] for kind in (solved, ~solved))
        signed = np.where(solved, 1.0 / np.maximum(num_solved, 1.0), -self.failures / np.maximum(num_failed, 1.0))
        return rows.write(advantage=np.where(valid & (num_solved > 0.0), signed, 0.0))


A3T = Recipe(
    name="a3t",
    source="arXiv:2403.14589",
    rollout=Autonomy(column="success"),
    advantage=Contrast(),
    loss=Policy(clip=None, surrogate=Reinforce(), aggregate="constant", constant=1.0),
    replay=Mix(Memory(), count=100_000, old_logprob="recomputed"),
    old_logprob="recomputed",
)
