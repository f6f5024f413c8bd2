"""ReMax: use the score of a greedy rollout as the baseline, instead of a critic (arXiv:2310.10505).

Each task is answered once by sampling and once greedily. With D = clip(R - R_greedy, -5, 5), the t-th of n trained
tokens has

    advantage = 0.99^(n - t + 1) D - 0.05 (log pi - log pi_ref),    L = - mean over tokens of advantage * log pi.

The greedy rollout has its own episode; it is scored and never trained.

Equations:
    Read: verl's code and notes; and a copy of the paper's script for the discount and the KL.

    - C1, baseline: `GreedyRelative`; `Rounds` generates the greedy rollout.
    - C2, advantage: `GreedyRelative(gamma=1.0)`; the recipe uses the script's discount of 0.99.
    - N1, loss: `Reinforce`, with a mean over tokens.

Differs:
    - Discount: 1 in verl, 0.99 in the script and here.
    - KL: in verl, the KL of the token and of all later tokens; in the script and here, the KL of the token alone, times
      0.05.
    - Aggregation: the sum over tokens in the method, the mean over all tokens in the script and here;
      `Policy(clip=None, surrogate=Reinforce(), aggregate="constant", constant=1.0)` gives the sum.
    - Greedy answer without a score: it raises an error, since a task without a baseline has no advantage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group, returns
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, option, token
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.rollout import RolloutSpec, Rounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core import Batch


@dataclass(frozen=True)
class GreedyRelative(BatchComponent):
    """Advantage of a draw over a greedy rollout of the same task, discounted towards its first token.

        advantage = gamma^(n - t + 1) * D - kl_coefficient * (log pi - log pi_ref) for the t-th of n trained tokens

    D = score - score of the group's greedy draws, clipped to a size of at most `at_most`. The draw column `greedy` is 1
    for greedy draws: their advantage is 0, and `weight.FlagFilter(flags="greedy", level="draw")` excludes them from the
    loss. The KL of a token affects only this token. Source: ReMax, arXiv:2310.10505 (`gamma=0.99,
    kl_coefficient=0.05`).

    Args:
        gamma: discount from token to token, 0 to 1.
        kl_coefficient: coefficient of the KL to the reference model, at least 0.
        at_most: largest absolute value of D; None: no limit.
        group_by: comma-joined key columns of the groups.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.remax import GreedyRelative
        >>> GreedyRelative().makes
        (token('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"), draw("greedy"))
    makes: ClassVar[tuple[Column, ...]] = (token("advantage"),)

    gamma: float = option(1.0, at_least=0, at_most=1)
    kl_coefficient: float = option(0.0, at_least=0)
    at_most: float | None = option(5.0, above=0)
    group_by: str = column_name("group_id", level="draw")

    def own_needs(self) -> Iterable[Column]:
        """Yield the columns to read: log-probs of the policy and of the reference model, if there is a KL."""
        if self.kl_coefficient > 0.0:
            yield from (token("behaviour_logprob"), token("reference_logprob", model="reference"))

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on tokens."""
        draws, tokens = Rows(batch, "draw"), Rows(batch, "token")
        groups, greedy = draws.keys(self.group_by), draws.flags("greedy")
        baseline = group.statistics(draws.values("score"), groups, valid=draws.valid & greedy).mean[groups]
        trained = draws.valid & ~greedy
        without_baseline = np.flatnonzero(trained & ~np.isfinite(baseline))
        if len(without_baseline):
            raise InvalidInputError(
                f"draw {without_baseline[0]} is in a group without a greedy draw that has a score; "
                "mark one in the draw column 'greedy', or use GroupRelative"
            )
        bound = np.inf if self.at_most is None else self.at_most
        gain = np.where(trained, np.clip(draws.values("score") - np.where(trained, baseline, 0.0), -bound, bound), 0.0)
        counted = tokens.valid & trained[tokens.draws]
        to_come = returns.discounted(counted.astype(np.float64), tokens.draws, gamma=1.0)
        advantages = gain[tokens.draws] * self.gamma**to_come
        if self.kl_coefficient > 0.0:
            advantages = advantages - self.kl_coefficient * (
                tokens.values("behaviour_logprob") - tokens.values("reference_logprob")
            )
        return tokens.write(advantage=np.where(counted, advantages, 0.0))


REMAX = Recipe(
    name="remax",
    source="arXiv:2310.10505",
    rollout=Rounds(members=RolloutSpec(1) + RolloutSpec(1, temperature=0.0, role="baseline", fact="greedy")),
    advantage=GreedyRelative(gamma=0.99, kl_coefficient=0.05),
    loss=Policy(clip=None, surrogate=Reinforce(), aggregate="token_mean"),
)
