"""Apriel-Reasoner: keep the share of each domain in training, and shorten easy answers (arXiv:2604.02007).

Domains differ in how many of their groups survive admission, so their shares drift. The groups of an iteration are
shared out by w_d = target_d clip(target_d / realised_d, 0.1, 10), realised_d the smoothed share of the domain among the
draws that were kept. An answer that comes near the longest length L is charged over the last B tokens,

    R = [right] + s p,    p = -min(max(length - (L - B), 0) / B, 1),    A = R - mean R of the others

with s the share of its group that is right if it is right itself, else 1: a right answer to a hard task may be long.
One ratio for an answer, and a loss in proportion to its length. Targets are equal here: name your domains in
`select.Quota("math=0.4,code=0.3,...")`.

Equations:
    Read: the public code, the abstract and notes of others; the paper's text was not read.

    - C1, adaptive domain sampling: `Quota(at_least=0.1, at_most=10.0)`.
    - C2, length penalty: `DifficultyPenalty`, over the last `buffer` tokens of `longest`.
    - C3, difficulty-aware penalty: `DifficultyPenalty`; an answer of the longest length has s = 1.
    - C4, advantage: `GroupRelative`, mean of the others, no std.
    - C5, loss: `Policy`, `Ratio("sequence")`, `aggregate="constant", constant=1.0`: the sum over tokens, divided by the
      number of answers.
    - C6, reward: `OutcomeScore(success=1.0, failure=0.0)`.

Differs:
    - Realised shares: of all rollouts that finished in the run, once there are 50, in the code; of draws that were
      kept, smoothed over iterations, here.
    - Targets: math 0.35, code 0.25, logic 0.15, instructions 0.15 and functions 0.1 in the code; equal here.
    - Reward of instructions: the share of the constraints that hold in the code; here 1 if the answer is right, else 0.
      `OutcomeScore()` keeps the environment's reward.
    - Clip range: 0.02 by default of the code, as here; that of the run is not stated.
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
    """Penalises long answers, right ones the less the fewer of their group are right.

        score - s * min(max(length - (longest - buffer), 0) / buffer, 1)

    s is (share of the group's draws that succeeded)^power for a draw that succeeded before the longest length, else 1.
    A length is a number of trained tokens.

    Args:
        longest: length with the full penalty.
        buffer: tokens before it that are charged, at most `longest`.
        power: of the share.

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
        """The buffer is part of the length."""
        self.require(self.buffer <= self.longest, "buffer", f"give a number of at most longest={self.longest}")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws."""
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
