"""TempSamp-R1: add the right answer to each group, and keep it from outshining the other members (arXiv:2509.18056).

Three rollouts are sampled; the fourth member is the task's solution. Its tokens were not sampled, so all old log-probs
are recomputed. Scores are flattened above 0.8 and steepened below, before they are compared (`CompressHigh`). If the
task has no solution, the fourth member is sampled like the other three.

Equations:
    Read: the paper's sections 3.1 to 3.3 and 4, and notes of others.

    - 1, objective: `Policy` with the joint ratio of a solution, a mean over solutions.
    - 2, joint advantage: `GroupRelative` over sampled solutions and the given one.
    - S1, reward downscaling: left out: one of the two alternatives that the paper finds worse than equation 4.
    - 3, advantage anchoring: left out: the other of these two alternatives.
    - 4, non-linear reward shaping: `CompressHigh`.
    - S2, interval reward: left out: the environment gives it, in the second phase together with the format reward.

Differs:
    - KL: the paper gives no beta; none here. `Policy(kl=KL(...))` adds the term.
    - Clip: not stated; 0.2 here, which does not act with one optimizer step, as in the paper's settings.
    - Phases without and with reasoning: they depend on the prompts and rewards of the environment.
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
    """Flatten high scores and steepen low ones, so that a given solution does not outshine the sampled ones.

    A score r becomes t + rise ln(r - t + 1) from the threshold t on, and t - (e^(fall (t - r)) - 1) / (e^fall - 1)
    below it. Source: TempSamp-R1, arXiv:2509.18056.

    Args:
        threshold: the threshold t.
        rise: slope of the curve at t, from above; it scales the differences between high scores.
        fall: how quickly the curve gets steeper below t.

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
        """Return `batch` with the column `score` of draws reshaped."""
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
