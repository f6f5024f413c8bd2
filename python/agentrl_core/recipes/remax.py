"""ReMax: the greedy answer is the baseline, in the place of a critic (arXiv:2310.10505).

Each task is sampled once and answered once greedily; D = clip(R - R_greedy, -5, 5), and of n trained tokens the t-th
has

    advantage = 0.99^(n - t + 1) D - 0.05 (log pi - log pi_ref),    L = - mean over tokens of advantage * log pi.

The greedy rollout has an episode of its own; it is scored and never trained.

Equations:
    Read: verl's code and notes; and a copy of the paper's script for the discount and the KL.

    - C1, baseline: `GreedyRelative`; `Rounds` makes the greedy answer.
    - C2, advantage: `GreedyRelative(gamma=1.0)`; the script's discount of 0.99 is the default.
    - N1, loss: `Reinforce`, of the mean over tokens.

Differs:
    - Discount: 1 in verl, 0.99 in the script and here.
    - KL: of the token and of all later ones in verl; of the token alone in the script and here, 0.05 of it.
    - Aggregation: the sum over tokens in the method, the mean over all tokens in the script and here;
      `Policy(clip=None, surrogate=Reinforce(), aggregate="constant", constant=1.0)` is the sum.
    - Greedy answer without a score: an error, since a task without a baseline has no advantage.
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
    """How much more a draw scored than a greedy rollout of the same task, discounted towards its first token.

        advantage = gamma^(n - t + 1) * D - kl_coefficient * (log pi - log pi_ref) of the t-th of n trained tokens

    D = score - score of the group's greedy draws, of a size of at most `at_most`. The draw column `greedy` is 1 for
    those: their advantage is 0, and `weight.FlagFilter(flags="greedy", level="draw")` leaves them out of the loss. The
    KL of a token counts for that token alone. Source: ReMax, arXiv:2310.10505 (`gamma=0.99, kl_coefficient=0.05`).

    Args:
        gamma: discount from token to token, 0 to 1.
        kl_coefficient: price of the distance from the reference, at least 0.
        at_most: the largest size of D; None: any.
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
        """The log-probs of the policy and its reference."""
        if self.kl_coefficient > 0.0:
            yield from (token("behaviour_logprob"), token("reference_logprob", model="reference"))

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on tokens."""
        draws, tokens = Rows(batch, "draw"), Rows(batch, "token")
        groups, greedy = draws.keys(self.group_by), draws.flags("greedy")
        baseline = group.statistics(draws.values("score"), groups, valid=draws.valid & greedy).mean[groups]
        trained = draws.valid & ~greedy
        alone = np.flatnonzero(trained & ~np.isfinite(baseline))
        if len(alone):
            raise InvalidInputError(
                f"draw {alone[0]} is in a group without a greedy draw that has a score; "
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
