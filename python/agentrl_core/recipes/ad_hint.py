"""ADHint: show a larger part of an expert's trace for harder tasks (arXiv:2512.13095).

After a round without hints, the difficulty of a task is D = 1 - mean score. If D > 0, a second round starts after the
first floor(w n) of the trace's n tokens, with

    w = (w_max - w_min) D + w_min + 0.05 N(0, 1)        within 0 and w_max; w_min = 0.1, w_max = 0.6.

Advantages compare plain members with plain ones and hinted members with hinted ones. Let D be the difficulty from the
plain members and D_h = 1 - mean score of the hinted ones. Positive advantages of plain members are multiplied by 1 + D,
negative advantages of hinted members by 1 + (1 - D_h). Hint tokens are trained if the advantage of their draw is not
negative. Their weight is exp(-|H - C| / C), with the entropy H of the token and the mean entropy C of the tokens that
the policy sampled in the draw. The bounds, the noise, both factors and the gate are not published: they are proposals.

Equations:
    Read: the abstract, a survey made from the paper's source, and notes; the paper's formulas were not read.

    - N1, difficulty: `HintsByDifficulty`: 1 - mean score of the first round.
    - N2, hint ratio: `HintsByDifficulty.share`, and `SolutionHint(unit="tokens")`, which rounds down.
    - N3, gate of hint tokens: `FittingHints`; the gate is at most 1 even without the minimum.
    - N4, selective masking: `FittingHints`: hint tokens of draws with a negative advantage have weight 0.
    - N5, advantages: `GroupRelative(group_by="group_id,hinted")` and `HintDifficulty`; the std has divisor n - 1.

Differs:
    - Number of hinted rollouts: the same as without a hint; the notes do not state it.
    - Bounds of the hint ratio: noise may lower it below 0.1, down to 0; the notes do not mention a bound.
    - Base algorithm: its loss is not stated; PPO's loss here, with clip range 0.2, one step, and one mean over all
      tokens. Old log-probs are recomputed, since hints were not sampled.
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
    """Run a second round that starts with a part of the task's solution, a larger part for harder tasks.

    The draw column `hinted` is 1 for rollouts of the second round. The module docstring has the formula.

    Args:
        at_least: w_min, the hint ratio at difficulty 0 before noise.
        at_most: w_max, the hint ratio at difficulty 1 before noise, and its upper bound.
        noise: standard deviation of the noise of w.
        hinted: rollouts of the second round.

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
        """Declare the facts of the members of both rounds."""
        super().__post_init__()
        object.__setattr__(self, "facts", {**self.facts, **self.hinted.facts})

    def check_options(self) -> None:
        """Require at_least <= at_most."""
        self.require(self.at_least <= self.at_most, "at_least", f"give a number up to at_most={self.at_most}")

    def share(self, difficulty: float, uniform: float) -> float:
        """Return the hint ratio w for a difficulty; the number `uniform` in [0, 1) is mapped to the normal noise."""
        normal = NormalDist().inv_cdf(max(uniform, 2.0**-64))
        share = (self.at_most - self.at_least) * difficulty + self.at_least + self.noise * normal
        return min(max(share, 0.0), self.at_most)

    async def next_round(self, group: Group, rounds: list[RoundResult]) -> RolloutSpec | None:
        """Return the first round; then the hinted round, if the task has a difficulty above 0 and a solution."""
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
    """Scale up positive advantages without a hint on hard tasks, negative ones with a hint if hints make the task easy.

    The module docstring has the factors.

    Example:
        >>> from agentrl_core.recipes.ad_hint import HintDifficulty
        >>> HintDifficulty().makes
        (draw('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("advantage"), draw("score"), draw("hinted"), draw("group_id"))
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the scaled `advantage` of draws."""
        rows = Rows(batch, "draw")
        advantages, hinted, groups = rows.values("advantage"), rows.flags("hinted"), rows.keys("group_id")
        scores = rows.values("score")
        mean_without_hint, mean_with_hint = (
            np.nan_to_num(groups_of.statistics(scores, groups, valid=rows.valid & kind).mean[groups], nan=1.0)
            for kind in (~hinted, hinted)
        )
        factors = np.where(
            ~hinted & (advantages > 0.0),
            2.0 - mean_without_hint,
            np.where(hinted & (advantages < 0.0), 1.0 + mean_with_hint, 1.0),
        )
        return rows.write(advantage=advantages * factors)


@dataclass(frozen=True)
class FittingHints(BatchComponent):
    """Train hint tokens if the draw's advantage is not negative, and more if their entropy is near the policy's mean.

    The weight of a hint token is multiplied by the gate of the module docstring, or by 0 if the advantage of its draw
    is negative. All other tokens keep their weights. Hint tokens are the tokens without a behaviour log-prob in draws
    that are `hinted`. Entropies are read from the column `current_entropy`, which `arl.annotate` computes, since hints
    were not sampled and have no recorded entropy.

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
        """Return `batch` with the scaled `weight` of tokens."""
        draws, tokens = Rows(batch, "draw"), Rows(batch, "token")
        written = ~np.isfinite(tokens.values("behaviour_logprob"))
        hint = written & draws.flags("hinted")[tokens.draws]
        entropies = tokens.values("current_entropy")
        generated = tokens.valid & ~written & np.isfinite(entropies)
        counts = np.bincount(tokens.draws[generated], minlength=len(draws))
        means = sum_rows(np.where(generated, entropies, 0.0), tokens.draws, len(draws)) / np.maximum(counts, 1)
        mean = means[tokens.draws]
        deviation = np.abs(entropies - mean)
        gate = np.exp(-np.divide(deviation, mean, out=np.zeros_like(mean), where=mean > 0.0))
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
