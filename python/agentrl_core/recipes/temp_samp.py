"""TempSamp-R1: the right answer is one member of each group, and does not outshine the others (arXiv:2509.18056).

Three rollouts are sampled, the fourth member is the task's solution. Its tokens were not sampled: all old log-probs
are recomputed. Scores are flattened above 0.8 and steepened below before they are compared (`CompressHigh`). Without a
solution the fourth is sampled as the others are.

Equations:
    Read: the paper's sections 3.1 to 3.3 and 4, and notes of others.

    - 1, objective: `Policy` with the joint ratio of a solution, a mean over solutions.
    - 2, joint advantage: `GroupRelative` over sampled solutions and the given one.
    - S1, reward downscaling: left out: one of the two alternatives that the paper finds worse than equation 4.
    - 3, advantage anchoring: left out: the other of them.
    - 4, non-linear reward shaping: `CompressHigh`.
    - S2, interval reward: left out: the environment pays it, in the second phase with the format's.

Differs:
    - KL: the paper gives no beta; none here. `Policy(kl=KL(...))` is the term.
    - Clip: not stated; 0.2 here, which does not act at the one step of the paper's settings.
    - Phases without and with reasoning: prompts and rewards of the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option
from agentrl_core.loss import Policy, Ratio
from agentrl_core.reward import OutcomeScore
from agentrl_core.rollout import RolloutSpec, Rounds, SolutionHint

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class CompressHigh(BatchComponent):
    """Flattens high scores and steepens low ones, so that a given solution does not outshine those that were sampled.

    score = t + rise ln(r - t + 1) of a score r from the threshold t on, and t - (e^(fall (t - r)) - 1) / (e^fall - 1)
    below. Source: TempSamp-R1, arXiv:2509.18056.

    Args:
        threshold: t.
        rise: how much scores above t differ.
        fall: how much steeper the curve gets below t.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.temp_samp import CompressHigh
        >>> CompressHigh().makes
        (draw('score'),)
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    threshold: float = 0.8
    rise: float = option(0.01, at_least=0)
    fall: float = option(1.0, above=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws."""
        rows = Rows(batch, "draw")
        above = rows.values("score") - self.threshold
        top = self.rise * np.log1p(np.maximum(above, 0.0))
        bottom = np.expm1(self.fall * np.maximum(-above, 0.0)) / np.expm1(self.fall)
        return rows.write(score=np.where(np.isfinite(above), self.threshold + top - bottom, np.nan))


TEMP_SAMP = Recipe(
    name="temp_samp",
    source="arXiv:2509.18056",
    rollout=Rounds(
        members=RolloutSpec(3) + RolloutSpec(1, prefill=SolutionHint(), prefill_trained=True, fact="expert")
    ),
    reward=(OutcomeScore(), CompressHigh()),
    advantage=GroupRelative(),
    loss=Policy(ratio=Ratio("sequence", reduce="sum", gradient="segment"), aggregate="sequence_mean"),
    old_logprob="recomputed",
)
