"""A2FM: train one model to answer at once, reason or use tools, in the cheapest mode that suffices.

In each group a prefix, which is not trained, forces some draws into a mode; the other draws choose their mode. A group
is easy if at least half of its draws forced into the cheapest mode succeed. In an easy group, draws that chose a more
expensive mode get a lower score; the reduction grows with the success rate p of the group's forced draws. A bad format
makes the score 0:

    score = reward * (1 - p^2 if more expensive than needed, else 1) * format

Advantages are computed over the whole group as in GRPO. Three members are forced into each mode, by a tag that starts
their first action, and three choose freely. The environment reports `reward.mode` (0 is the cheapest) and
`reward.format`; the program records which members are forced (`reward.forced`).

Equations:
    Read: figure and README of the authors' repository, the abstract, and notes by others; the paper's text was not
    read.

    - P1, reward of a forced rollout: `OutcomeScore` times `reward.format`.
    - P2, reward of a free rollout: the same product, times the factor of `ModeCost`.
    - P3, advantage: `GroupRelative(ddof=0)` over forced and free rollouts together.
    - N1, group: `Rounds` with three `RolloutSpec(3, prefill=...)` and three free members.
    - N2, adaptive part: `ModeCost(power=2)`.
    - N3, mask: `RolloutSpec(prefill=...)` writes tokens that are not trained; tool tokens are never trained.

Differs:
    - Forced rollouts in a dear mode: the notes lower their scores too; the authors' figure does not, and neither does
      the recipe.
    - Easy group: the source gives no threshold; in its figure a question is easy if the cheapest mode solves one of
      two.
    - Group size: 9 in the figure, 12 in the notes and here.
    - Optimizer steps: not in the paper; the notes have 2 epochs, of a batch or of the data; 1 step per batch here.
    - Clip, KL: not in the source; clip range 0.2 and no KL penalty here.
    - Aggregation: not in the source; one mean over tokens here.

Source: arXiv:2510.12838, whose repository contains no training code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option
from agentrl_core.loss import Policy
from agentrl_core.reward import CombineReward, OutcomeScore
from agentrl_core.rollout import Branch, Group, Hint, HintSource, RolloutSpec, Rounds

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class FixedHint(HintSource):
    """Use one text as the hint of every task: an instruction, or a tag that forces a mode.

    Args:
        text: text of the hint.

    Example:
        >>> from agentrl_core.recipes.a2fm import FixedHint
        >>> FixedHint("<think>").text
        '<think>'
    """

    text: str = option("Think step by step.", filled=True)

    async def hint(self, group: Group, of: Sequence[Branch]) -> Hint:
        """Return the fixed text as the hint."""
        del group, of
        return Hint((self.text,))


@dataclass(frozen=True)
class ModeCost(BatchComponent):
    """Lower scores of draws that chose a more expensive mode than needed: score *= 1 - p^power, p the success rate.

    A group is easy if at least the share `easy` of its draws forced into the cheapest mode succeeded. In easy groups,
    the factor applies to draws that chose another mode than the cheapest. p is the success rate of all forced draws.

    Args:
        mode: draw column of the mode, a whole number.
        forced: draw column that is not 0 if the mode was forced.
        cheapest: number of the cheapest mode.
        easy: smallest success rate that makes a group easy.
        power: exponent of the success rate p.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.a2fm import ModeCost
        >>> ModeCost(mode="mode").makes
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("success"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    mode: str = column_name("reward.mode", level="draw")
    forced: str = column_name("reward.forced", level="draw")
    cheapest: int = 0
    easy: float = option(0.5, at_least=0, at_most=1)
    power: float = option(2.0, above=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the lowered `score` of draws."""
        rows = Rows(batch, "draw")
        groups, successes = rows.keys("group_id"), rows.flags("success").astype(np.float64)
        cheap, forced = rows.values(self.mode) == self.cheapest, rows.flags(self.forced)
        known = forced & rows.valid & rows.is_known("success")
        rates, cheap_rates = (
            np.nan_to_num(group.statistics(successes, groups, valid=counted).mean, nan=-1.0)[groups]
            for counted in (known, known & cheap)
        )
        scores = rows.values("score")
        expensive = (cheap_rates >= self.easy) & ~cheap & ~forced
        return rows.write(score=np.where(expensive, scores * (1.0 - rates**self.power), scores))


A2FM = Recipe(
    name="a2fm",
    source="arXiv:2510.12838",
    rollout=Rounds(
        members=RolloutSpec(3, prefill=FixedHint("<instant>"), fact="reward.forced")
        + RolloutSpec(3, prefill=FixedHint("<reasoning>"), fact="reward.forced")
        + RolloutSpec(3, prefill=FixedHint("<agentic>"), fact="reward.forced")
        + RolloutSpec(3)
    ),
    reward=(OutcomeScore(), ModeCost(), CombineReward(column="reward.format", kind="multiply")),
    advantage=GroupRelative(ddof=0),
    loss=Policy(),
)
