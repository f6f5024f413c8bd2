"""Advantages that are weights of draws, softmax within the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.advantage.normalisation import Normalisation
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed, sums
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

Aggregate = Literal["sum", "mean", "log_ratio"]


@dataclass(frozen=True)
class HistoryWeighted(BatchComponent):
    """The gradient of HAEPO's objective (arXiv:2508.18884) as an advantage of whole draws.

    With w = softmax(L / temperature) within the group, L the log-prob of a draw's trained tokens, and R its score,
    compared with its group, the objective is sum w R + entropy_weight * H(w) - kl_weight * KL(w_ref || w), and by
    log-prob

        A = (1 / temperature) * [w * (R - sum w R) - entropy_weight * w * (ln w + H) + kl_weight * (w_ref - w)]

    Use it with a loss -A * log p, summed over tokens, without ratio or clip. It reads the column `current_logprob`, so
    it belongs to each update. Draws without a score neither vote nor get a value. The paper does not give the weights.

    Args:
        aggregate: L: the `sum`, the `mean`, or the sum of the log-ratio to the behaviour policy (`log_ratio`).
        temperature: above 0.
        entropy_weight: at least 0.
        kl_weight: at least 0; w_ref is the same of the behaviour policy's log-probs.
        normalisation: how scores are compared.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import HistoryWeighted
        >>> HistoryWeighted().makes
        (('draw', 'advantage'),)
    """

    phase: ClassVar[str] = "advantage"

    aggregate: Aggregate = "sum"
    temperature: float = 1.0
    entropy_weight: float = 0.01
    kl_weight: float = 0.01
    normalisation: Normalisation = Normalisation()

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.temperature > 0.0, "temperature", "give a number above 0")
        for option in ("entropy_weight", "kl_weight"):
            self.require(getattr(self, option) >= 0.0, option, "give a number of at least 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Scores, and log-probs as they are now and as they were."""
        return (*needed("draw", "score", "group_id"), *needed("token", "current_logprob", "behaviour_logprob"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        groups, valid = rows.keys("group_id"), rows.valid
        now, then = (_of_draws(rows, name, self.aggregate) for name in ("current_logprob", "behaviour_logprob"))
        if self.aggregate == "log_ratio":
            now, then = now - then, np.zeros(len(rows))
        share = group.softmax(now, groups, temperature=self.temperature, valid=valid)
        before = group.softmax(then, groups, temperature=self.temperature, valid=valid)
        score = self.normalisation.compare(rows.values("score"), groups, valid=valid)
        log_share = np.log(np.maximum(share, np.finfo(np.float64).tiny))
        entropy = -group.sums(share * log_share, groups)[groups]
        gain = share * (score - group.sums(share * score, groups)[groups])
        spread = self.entropy_weight * share * (log_share + entropy)
        made = (gain - spread + self.kl_weight * (before - share)) / self.temperature
        return rows.write(advantage=np.where(valid, made, 0.0))


@dataclass(frozen=True)
class LengthWeighted(BatchComponent):
    """The gradient of DRPO's objective (arXiv:2510.04474): short successes count more, likely failures count more.

    A = softmax((1 - length / limit) / length_temperature) over the group's successes (score above 0), and -softmax(s /
    temperature) over its failures, s the mean log-prob of a draw's trained tokens. A group without the one or the other
    gets 0. Use it with a loss -A * mean log p, without ratio or clip. It reads the column `current_logprob`, so it
    belongs to each update. Draws without a score neither vote nor get a value.

    Args:
        limit: the longest a draw may be, in trained tokens.
        length_temperature: above 0; the larger, the less length matters.
        temperature: of failures, above 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import LengthWeighted
        >>> LengthWeighted(limit=4096).makes
        (('draw', 'advantage'),)
    """

    phase: ClassVar[str] = "advantage"

    limit: int
    length_temperature: float = 0.1
    temperature: float = 10.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.limit >= 1, "limit", "give a number of at least 1")
        for option in ("length_temperature", "temperature"):
            self.require(getattr(self, option) > 0.0, option, "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Scores, and log-probs as they are now."""
        return (*needed("draw", "score", "group_id"), ("token", "current_logprob"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        groups, valid = rows.keys("group_id"), rows.valid
        won = valid & (np.nan_to_num(rows.values("score"), nan=0.0) > 0.0)
        short = 1.0 - rows.trained / self.limit
        likely = _of_draws(rows, "current_logprob", "mean")
        successes = group.softmax(short, groups, temperature=self.length_temperature, valid=won)
        failures = group.softmax(likely, groups, temperature=self.temperature, valid=valid & ~won)
        share = group.statistics(won, groups, valid=valid).mean[groups]
        mixed = (share > 0.0) & (share < 1.0)
        return rows.write(advantage=np.where(mixed, successes - failures, 0.0))


@dataclass(frozen=True)
class SoftmaxScaled(BatchComponent):
    """advantage = A * softmax((A + strength * H) / temperature) within the group: good and uncertain draws count more.

    A is the advantage of draws that is there, H the mean entropy of a draw's trained tokens. Source: EGSW,
    arXiv:2503.22456, which does not give the defaults.

    Args:
        strength: of the entropy.
        temperature: above 0; the smaller, the more one draw takes all.
        rescale_mean_one: multiply by the number of the group's draws, so that the weights have mean 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import SoftmaxScaled
        >>> SoftmaxScaled().needs
        (('draw', 'advantage'), ('draw', 'group_id'), ('token', 'entropy'))
    """

    phase: ClassVar[str] = "advantage"

    strength: float = 0.1
    temperature: float = 1.0
    rescale_mean_one: bool = False

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.temperature > 0.0, "temperature", "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The advantage so far, and entropies."""
        return (*needed("draw", "advantage", "group_id"), ("token", "entropy"))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `advantage` on draws."""
        rows = Rows(batch, "draw")
        groups, valid = rows.keys("group_id"), rows.valid
        advantage, entropy = rows.values("advantage"), _of_draws(rows, "entropy", "mean")
        made = group.softmax(advantage + self.strength * entropy, groups, temperature=self.temperature, valid=valid)
        if self.rescale_mean_one:
            made = group.mean_one(made, groups, valid=valid)
        return rows.write(advantage=np.where(valid, made * advantage, 0.0))


def _of_draws(rows: Rows, name: str, aggregate: Aggregate) -> NDArray[np.float64]:
    """The sum, or the mean, of a token column over the trained tokens of each draw; 0 without any."""
    tokens = Rows(rows.batch, "token")
    values = np.where(tokens.flags("trainable"), tokens.values(name), 0.0)
    total = sums(values, tokens.draws, len(rows))
    return total / np.maximum(rows.trained, 1.0) if aggregate == "mean" else total
