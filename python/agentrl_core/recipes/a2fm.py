"""A2FM: one model answers at once, reasons, or uses tools, and learns to take the cheapest mode that will do.

Of each group some draws are forced into a mode by a prefix that is not trained, the others choose. A group is easy if
at least half of its draws forced into the cheapest mode succeed. There, a draw that chose a dearer mode is paid less
the more often the group's forced draws succeed (p), and a bad format costs everything:

    score = reward * (1 - p^2 if dearer than needed, else 1) * format

Then GRPO over the whole group. Three members are forced into each mode, by a tag that their first action begins with,
and three are free. The environment reports `reward.mode` (0 is the cheapest) and `reward.format`; the program
records which are forced (`reward.forced`).

Equations:
    Read: figure and README of the authors' repository, the abstract, and notes of others; not the paper's text.

    - P1, reward of a forced rollout: `OutcomeScore` times `reward.format`.
    - P2, reward of a free rollout: the same times `ModeCost`.
    - P3, advantage: `GroupRelative(ddof=0)` over forced and free rollouts together.
    - N1, group: `Rounds` with three `RolloutSpec(3, prefill=...)` and three free members.
    - N2, adaptive part: `ModeCost(power=2)`.
    - N3, mask: `RolloutSpec(prefill=...)` writes its tokens untrained; tokens of tools are never trained.

Differs:
    - Forced rollouts in a dear mode: the notes lower them too; the authors' figure does not, nor does the recipe.
    - Easy group: the source gives no threshold; its figure calls a question easy of which the cheapest mode solves one
      of two.
    - Group size: 9 in the figure, 12 in the notes and here.
    - Optimizer steps: not in the paper; the notes have 2 epochs, of a batch or of the data; 1 here.
    - Clip, KL: not in the source; 0.2 and none here.
    - Aggregation: not in the source; one mean over tokens here.

Source: arXiv:2510.12838, whose repository holds no training code.
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
    """The same text for every task: an instruction, or a tag that forces a mode.

    Args:
        text: of the hint.

    Example:
        >>> from agentrl_core.recipes.a2fm import FixedHint
        >>> FixedHint("<think>").text
        '<think>'
    """

    text: str = option("Think step by step.", filled=True)

    async def hint(self, group: Group, of: Sequence[Branch]) -> Hint:
        """The text."""
        del group, of
        return Hint((self.text,))


@dataclass(frozen=True)
class ModeCost(BatchComponent):
    """Makes a dear mode cost where a cheap one would do: score *= 1 - p^power.

    It holds for draws that chose another mode than the cheapest, in a group of whose draws forced into the cheapest one
    at least the share `easy` succeeded; p is the share of the group's forced draws that succeeded.

    Args:
        mode: which mode the draw was in, a whole number.
        forced: other than 0 if the mode was forced.
        cheapest: number of the cheapest mode.
        easy: share of successes.
        power: how much more a group costs the easier it is.

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
        """Return `batch` with another column `score` on draws."""
        rows = Rows(batch, "draw")
        groups, successes = rows.keys("group_id"), rows.flags("success").astype(np.float64)
        cheap, forced = rows.values(self.mode) == self.cheapest, rows.flags(self.forced)
        known = forced & rows.valid & rows.is_known("success")
        rates, cheap_rates = (
            np.nan_to_num(group.statistics(successes, groups, valid=counted).mean, nan=-1.0)[groups]
            for counted in (known, known & cheap)
        )
        scores = rows.values("score")
        dear = (cheap_rates >= self.easy) & ~cheap & ~forced
        return rows.write(score=np.where(dear, scores * (1.0 - rates**self.power), scores))


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
