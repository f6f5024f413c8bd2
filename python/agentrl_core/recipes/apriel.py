"""Apriel-Reasoner: keep each domain's share of the training data, and shorten answers to easy tasks (arXiv:2604.02007).

Domains differ in how many of their groups are admitted, so their shares of the batch drift. The groups of an iteration
are therefore distributed over domains in proportion to w_d = target_d clip(target_d / realised_d, 0.1, 10), where
realised_d is the smoothed share of domain d among the kept draws. An answer close to the longest length L is penalised
over the last B tokens:

    R = [right] + s p,    p = -min(max(length - (L - B), 0) / B, 1),    A = R - mean R of the other answers

s is the share of right answers in the group if the answer itself is right, otherwise 1: a right answer to a hard task
may be long. Each answer has one importance ratio, and its loss is proportional to its length. Targets are equal here;
set the shares of your domains with `select.Quota((("math", 0.4), ("code", 0.3), ...))`.

Equations:
    Read: the public code, the abstract and notes of others; the paper's text was not read.

    - C1, adaptive domain sampling: `Quota(at_least=0.1, at_most=10.0)`.
    - C2, length penalty: `DifficultyPenalty`, over the last `buffer` tokens of `longest`.
    - C3, difficulty-aware penalty: `DifficultyPenalty`; an answer of the longest length has s = 1.
    - C4, advantage: `GroupRelative`, with the mean of the other answers and without a std.
    - C5, loss: `Policy`, `Ratio("sequence")`, `aggregate="constant", constant=1.0`: the sum over tokens, divided by the
      number of answers.
    - C6, reward: `OutcomeScore(success=1.0, failure=0.0)`.

Differs:
    - Realised shares: in the code, shares of all rollouts that finished in the run, from 50 rollouts on; here, shares
      of the kept draws, smoothed over iterations.
    - Targets: math 0.35, code 0.25, logic 0.15, instructions 0.15 and functions 0.1 in the code; equal here.
    - Reward of instructions: in the code, the share of fulfilled constraints; here 1 if the answer is right, otherwise
      0. `OutcomeScore()` keeps the environment's reward.
    - Clip range: 0.02 here, the code's default; the clip range of the published run is not stated.
    - Penalty: B and the exponent of s are not stated; 2048 and 1 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.loss import Clip, Policy, Ratio
from agentrl_core.reward import OutcomeScore
from agentrl_core.select import ComposedSelector, Quota

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class DifficultyPenalty(BatchComponent):
    """Penalise long answers; penalise a right answer less if few answers of its group are right.

        score - s * min(max(length - (longest - buffer), 0) / buffer, 1)

    s is (share of the group's draws that succeeded)^power for a successful draw shorter than `longest`, otherwise 1.
    The length is the number of trained tokens.

    Args:
        longest: length with the full penalty.
        buffer: number of tokens before `longest` over which the penalty rises, at most `longest`.
        power: exponent of the share.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.apriel import DifficultyPenalty
        >>> DifficultyPenalty().needs
        (draw('score'), draw('success'), draw('group_id'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("success"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    longest: int = option(16384, above=0)
    buffer: int = option(2048, above=0)
    power: float = option(1.0, at_least=0)

    def check_options(self) -> None:
        """Check that the buffer is at most the longest length."""
        self.require(self.buffer <= self.longest, "buffer", f"give a number of at most longest={self.longest}")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a changed `score` on draws."""
        rows = Rows(batch, "draw")
        groups, lengths = rows.keys("group_id"), rows.trained
        right = rows.valid & rows.flags("success")
        rates = group.statistics(right.astype(np.float64), groups, valid=rows.valid).mean[groups]
        share = np.where(right & (lengths < self.longest), np.nan_to_num(rates) ** self.power, 1.0)
        charged = np.clip((lengths - (self.longest - self.buffer)) / self.buffer, 0.0, 1.0)
        return rows.write(score=rows.values("score") - share * charged)


APRIEL = Recipe(
    name="apriel",
    source="arXiv:2604.02007",
    select=ComposedSelector(quota=Quota(at_least=0.1, at_most=10.0)),
    reward=(OutcomeScore(success=1.0, failure=0.0), DifficultyPenalty()),
    advantage=GroupRelative(center="leave_one_out", scale="none"),
    loss=Policy(ratio=Ratio("sequence"), clip=Clip(0.02, 0.02), aggregate="constant", constant=1.0),
)
