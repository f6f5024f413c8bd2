"""Scores minus that of a greedy rollout of the same task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, key_columns, needed
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import group, returns

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class GreedyRelative(BatchComponent):
    """advantage = gamma^(n - t + 1) * D - kl * (log pi - log pi_ref) of the t-th of a draw's n trained tokens.

    D = score - score of the group's greedy draws, cut to at most `clip`. The draw column `greedy` is 1 for those: they
    are left out of the loss (`keep` 0). The KL of a token counts for that token alone. Source: ReMax, arXiv:2310.10505
    (`gamma=0.99, kl=0.05, clip=5.0`).

    Args:
        gamma: discount from token to token, 0 to 1.
        kl: price of the distance from the reference, at least 0.
        clip: D is cut to at most this size; None: it is not.
        group_by: comma-joined key columns of the groups.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import GreedyRelative
        >>> GreedyRelative().makes
        (('token', 'advantage'), ('draw', 'keep'))
    """

    phase: ClassVar[str] = "advantage"

    gamma: float = 1.0
    kl: float = 0.0
    clip: float | None = 5.0
    group_by: str = "group_id"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 <= self.gamma <= 1.0, "gamma", "give a number from 0 to 1")
        self.require(self.kl >= 0.0, "kl", "give a number of at least 0")
        self.require(self.clip is None or self.clip > 0.0, "clip", "give a number above 0, or None")
        self.require(bool(self.group_by), "group_by", 'name key columns, or "batch"')

    @property
    def needs(self) -> tuple[Column, ...]:
        """Scores, which draws are greedy, and the log-probs of the policy and its reference."""
        names = ("behaviour_logprob", "reference_logprob") if self.kl > 0.0 else ()
        return (*needed("draw", "score", "greedy", *key_columns(self.group_by)), *needed("token", *names))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each token, and which draws are trained."""
        return (("token", "advantage"), ("draw", "keep"))

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `advantage` on tokens and `keep` on draws."""
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
        bound = np.inf if self.clip is None else self.clip
        gain = np.where(trained, np.clip(draws.values("score") - np.where(trained, baseline, 0.0), -bound, bound), 0.0)
        counted = tokens.valid & trained[tokens.draws]
        to_come = returns.discounted(counted.astype(np.float64), tokens.draws, gamma=1.0)
        made = gain[tokens.draws] * self.gamma**to_come
        if self.kl > 0.0:
            made = made - self.kl * (tokens.values("behaviour_logprob") - tokens.values("reference_logprob"))
        kept = ~greedy & draws.flags("keep") if batch.has("keep", "draw") else ~greedy
        return tokens.write(advantage=np.where(counted, made, 0.0)).with_columns("draw", keep=kept.astype(np.uint8))
