"""ADHint: the harder a task, the more of an expert's trace is given (arXiv:2512.13095).

After a round without hints the difficulty of a task is D = 1 - mean score. If D > 0 a second round begins behind the
first floor(w n) tokens of the trace, with

    w = (w_max - w_min) D + w_min + 0.05 N(0, 1)        within 0 and w_max; w_min = 0.1, w_max = 0.6.

Advantages compare plain and hinted members among themselves; then with D of the plain ones and D_h = 1 - mean score of
the hinted ones, positive advantages of plain members are multiplied by 1 + D, negative ones of hinted members by
1 + (1 - D_h). Hints are trained where the advantage is not negative, each token by how well its entropy H fits that of
what the policy wrote behind it (mean C): exp(-|H - C| / C). The bounds, the noise, both factors and the gate are
not published: they are proposals.

Equations:
    Read: the abstract, a survey made from the paper's source, and notes; the paper's formulas were not read.

    - N1, difficulty: `HintsByDifficulty`: 1 - mean score of the first round.
    - N2, hint ratio: `HintsByDifficulty.share`, and `SolutionHint(unit="tokens")`, which rounds down.
    - N3, gate of hint tokens: `FittingHints`; it is at most 1 without the minimum.
    - N4, selective masking: `FittingHints`: hint tokens of draws with a negative advantage weigh 0.
    - N5, advantages: `GroupRelative(group_by="group_id,hinted")` and `HintDifficulty`, std of n - 1.

Differs:
    - Number of hinted rollouts: as many as without a hint; not stated in the notes.
    - Bounds of the hint ratio: noise may take it below 0.1, down to 0; the notes do not mention a bound.
    - Base algorithm: its loss is not stated; here PPO's with clip range 0.2 and one step, one mean over all tokens, and
      old log-probs recomputed, since hints were not sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core import group as groups_of
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option, sum_rows, token
from agentrl_core.loss import Policy
from agentrl_core.rollout import Group, RolloutSpec, RoundResult, Rounds, SolutionHint

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class HintsByDifficulty(Rounds):
    """A second round begins with the more of the task's solution, the less of the first succeeded.

    The draw column `hinted` is 1 for the second. The formula is that of the file.

    Args:
        at_least: w_min.
        at_most: w_max.
        noise: the standard deviation of w.
        hinted: members of the second round.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.ad_hint import HintsByDifficulty
        >>> HintsByDifficulty().share(difficulty=0.5, uniform=0.5)  # (0.6 - 0.1) 0.5 + 0.1
        0.35
    """

    at_least: float = option(0.1, at_least=0, at_most=1)
    at_most: float = option(0.6, at_least=0, below=1)
    noise: float = option(0.05, at_least=0)
    hinted: RolloutSpec = RolloutSpec(prefill_trained=True, fact="hinted")  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        """Declare the facts of both kinds."""
        super().__post_init__()
        object.__setattr__(self, "facts", {**self.facts, **self.hinted.facts})

    def check_options(self) -> None:
        """The bounds are in order."""
        self.require(self.at_least <= self.at_most, "at_least", f"give a number up to at_most={self.at_most}")

    def share(self, difficulty: float, uniform: float) -> float:
        """w, for a difficulty and a number in [0, 1) that the noise comes of."""
        normal = NormalDist().inv_cdf(max(uniform, 2.0**-64))
        share = (self.at_most - self.at_least) * difficulty + self.at_least + self.noise * normal
        return min(max(share, 0.0), self.at_most)

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """The hinted ones, where the task is not solved by all."""
        if not rounds:
            return self.members
        known = rounds[0].scores[np.isfinite(rounds[0].scores)]
        difficulty = 1.0 - float(known.mean()) if len(known) else 0.0
        if len(rounds) > 1 or difficulty <= 0.0 or not group.task.solution:
            return None
        share = self.share(min(difficulty, 1.0), group.uniform("hint"))
        return replace(self.hinted, prefill=SolutionHint(share=share, unit="tokens"))


@dataclass(frozen=True)
class HintDifficulty(BatchComponent):
    """Successes without a hint count more on hard tasks, failures with a hint on tasks that hints make easy.

    The factors are those of the file.

    Example:
        >>> from agentrl_core.recipes.ad_hint import HintDifficulty
        >>> HintDifficulty().makes
        (draw('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("score"), draw("hinted"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `advantage` on draws."""
        rows = Rows(batch, "draw")
        advantages, hinted, groups = rows.values("advantage"), rows.flags("hinted"), rows.keys("group_id")
        scores = rows.values("score")
        plain, shown = (
            np.nan_to_num(groups_of.statistics(scores, groups, valid=rows.valid & kind).mean[groups], nan=1.0)
            for kind in (~hinted, hinted)
        )
        factors = np.where(
            ~hinted & (advantages > 0.0), 2.0 - plain, np.where(hinted & (advantages < 0.0), 1.0 + shown, 1.0)
        )
        return rows.write(advantage=advantages * factors)


@dataclass(frozen=True)
class FittingHints(BatchComponent):
    """Trains a hint where it helped, and the more of it the better it fits the policy's own uncertainty.

    The weight of a hint's token is the gate of the file, 0 if the advantage of its draw is negative; all other
    tokens keep theirs. Tokens of a hint are those without a behaviour log-prob, of draws that are `hinted`. Entropies
    are those of the column `current_entropy`, which `arl.annotate` makes: hints were not sampled and have none else.

    Example:
        >>> from agentrl_core.recipes.ad_hint import FittingHints
        >>> FittingHints().makes
        (token('weight'),)
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (
        draw("hinted"),
        draw("advantage"),
        token("behaviour_logprob"),
        token("current_entropy", model="policy"),
    )
    makes: ClassVar[tuple[Column, ...]] = (token("weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` on tokens scaled."""
        draws, tokens = Rows(batch, "draw"), Rows(batch, "token")
        written = ~np.isfinite(tokens.values("behaviour_logprob"))
        hint = written & draws.flags("hinted")[tokens.draws]
        entropies = tokens.values("current_entropy")
        own = tokens.valid & ~written & np.isfinite(entropies)
        counts = np.bincount(tokens.draws[own], minlength=len(draws))
        means = sum_rows(np.where(own, entropies, 0.0), tokens.draws, len(draws)) / np.maximum(counts, 1)
        mean = means[tokens.draws]
        away = np.abs(entropies - mean)
        gate = np.exp(-np.divide(away, mean, out=np.zeros_like(mean), where=mean > 0.0))
        helped = draws.values("advantage")[tokens.draws] >= 0.0
        return tokens.scale(np.where(hint, np.where(helped, np.nan_to_num(gate), 0.0), 1.0))


AD_HINT = Recipe(
    name="ad_hint",
    source="arXiv:2512.13095",
    rollout=HintsByDifficulty(),
    advantage=(GroupRelative(group_by="group_id,hinted"), HintDifficulty()),
    weight=FittingHints(),
    loss=Policy(),
    old_logprob="recomputed",
)
