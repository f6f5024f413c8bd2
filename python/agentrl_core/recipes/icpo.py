"""ICPO: show one member of each group a demonstration, and train it on the plain prompt (arXiv:2510.26519).

Seven members get the task as prompt. The eighth also gets a solution of another task before it; for training, its
answer is placed after the task alone. It is kept only if its reward is at least 1 (`at_least=None`: always, as in the
public code). In iteration t, a success with a demonstration has reward 1 + max(0, 1 - t / 400). Tokens of the eighth
member have the factor p / (p + 0.01) instead of a ratio (0.1 in the public code); all other tokens have PPO's clip with
a dual clip of 3. The KL coefficient is 0.001. Demonstrations are solutions from earlier in the same run, without their
questions. Before the first solution, the eighth member has no demonstration.

Equations:
    Read: the public code, and notes by others on the paper. The paper's text was not read.

    - C1, rollouts: `OneDemonstration`, with `RolloutSpec(train_without_hint=True)`; log-probs are recomputed after the
      task alone.
    - C2, annealed reward: `CombineReward(column="shown", only="success")`.
    - C3, advantage: `GroupRelative`; for a group of one it is 0 here, and the reward in the code (`singleton="raw"`).
    - C4, loss of steered rollouts: `Expert`.
    - C5, loss of other rollouts: `Policy`, dual clip 3, one mean over the tokens of C4 and C5.
    - N1, expert region reject sampling: `OneDemonstration(at_least=1.0)`.

Differs:
    - Shaping: 0.1 in the code; 0.01 in the paper, by the notes, and here.
    - Failed steered rollouts: kept in the code; dropped here, as in the paper.
    - Place of a good one: by a note on the first version it replaces a random other rollout of eight; the code, a
      note on the later version and this recipe have seven rollouts and one with a demonstration.
    - Demonstrations: from a data set of solutions in the code; from the run here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import option
from agentrl_core.loss import KL, Clip, Expert, Policy
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.rollout import ExampleHint, Group, RolloutSpec, RoundResult, Rounds
from agentrl_core.weight import ExpertMask


@dataclass(frozen=True)
class OneDemonstration(Rounds):
    """Show one member of a group a demonstration, and drop that member if its score is too low.

    The draw column `shown` is 1 for this member.

    Args:
        members: members without and with a demonstration.
        at_least: smallest value of `column` with which a member with a demonstration is kept; None: any value.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.icpo import OneDemonstration
        >>> OneDemonstration().final_group_size(group_size=4)
        8
    """

    members: RolloutSpec = RolloutSpec(7) + RolloutSpec(1, hint=ExampleHint(), train_without_hint=True, fact="shown")
    at_least: float | None = option(1.0)

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Return all members for the first round; then drop members with a demonstration and a low score."""
        if not rounds:
            return self.members
        shown_rows = [row for row, branch in enumerate(rounds[0].branches) if branch.record.facts.get("shown")]
        threshold = -np.inf if self.at_least is None else self.at_least
        group.drop(
            [rounds[0].branches[row] for row in shown_rows if not rounds[0].scores[row] >= threshold], "not good enough"
        )
        return None


ICPO = Recipe(
    name="icpo",
    source="arXiv:2510.26519",
    rollout=OneDemonstration(column="success"),
    reward=(
        OutcomeScore(success=1.0, failure=0.0),
        CombineReward(column="shown", coefficient=Schedule(start=1.0, end=0.0, iterations=400), only="success"),
    ),
    advantage=GroupRelative(),
    weight=ExpertMask(),
    loss=Policy(clip=Clip(0.2, 0.2, 3.0), kl=KL(0.001), expert=Expert(0.01)),
    old_logprob="recomputed",
    minibatches=2,
)
