"""Factors that follow entropy: how unsure the policy was of a token, a step or a whole answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import BatchComponent, Column, Level
from agentrl_core.component.rows import Rows, mean_of_tokens, needed
from agentrl_core.operators import group
from agentrl_core.reward.votes import cluster_votes

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class EntropyScaled(BatchComponent):
    """weight *= max(1 + strength * x, least), with x the entropy of a token, step or draw compared with others.

    The entropy of a step or draw is the mean over its trained tokens. With H that entropy, x is

    - `standard_score`: (H - mean) / std, std with n - 1, and 1 where it is 0 (AEPO, arXiv:2510.14545);
    - `relative`: (mean - H) / mean, 0 where the mean is 0 (ETTRL, arXiv:2508.11356: `level="draw", scope="group",
      strength=1.0, least=0.0`; its public code: `least=None`).

    A weight may be negative where `least` is None: it then turns the sign of the advantage. Where no entropy is known
    the factor is 1.

    Args:
        column: token column of entropies in nats, of the rollout.
        level: of the rows that are compared.
        normalise: see above.
        scope: with which rows a row is compared: all of the `batch`, or those of its `group`.
        strength: how strongly the factor follows x; a negative number turns its direction.
        least: the smallest factor; None: none.

    Raises:
        RecipeError: an option is out of range, or no entropy is known.

    Example:
        >>> from agentrl_core.weight import EntropyScaled
        >>> EntropyScaled(level="draw", normalise="relative", scope="group").needs
        (('token', 'entropy'), ('draw', 'group_id'))
    """

    phase: ClassVar[str] = "weight"

    column: str = "entropy"
    level: Level = "token"
    normalise: Literal["standard_score", "relative"] = "standard_score"
    scope: Literal["batch", "group"] = "batch"
    strength: float = 0.2
    least: float | None = 0.0

    @property
    def needs(self) -> tuple[Column, ...]:
        """The entropies, and the groups."""
        return (("token", self.column), *(needed("draw", "group_id") if self.scope == "group" else ()))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight, and x itself as `entropy_score`."""
        return needed(self.level, "weight", "entropy_score")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled, and the column `entropy_score`."""
        rows = Rows(batch, self.level)
        if self.level == "token":
            known = rows.known(self.column)
            entropy = np.where(known, rows.values(self.column), 0.0)
        else:
            entropy, known = mean_of_tokens(batch, self.column, self.level)
        score = self._compared(entropy, known, rows.keys("group_id" if self.scope == "group" else "batch"))
        factor = 1.0 + self.strength * score
        if self.least is not None:
            factor = np.maximum(factor, self.least)
        return Rows(rows.scale(factor), self.level).write(entropy_score=score)

    def _compared(
        self, entropy: NDArray[np.float64], known: NDArray[np.bool_], groups: NDArray[np.uint32]
    ) -> NDArray[np.float64]:
        if self.normalise == "standard_score":
            return np.asarray(group.normalise(entropy, groups, eps=0.0, valid=known))
        mean = np.nan_to_num(group.statistics(entropy, groups, valid=known).mean[groups], nan=0.0)
        there = known & (mean != 0.0)
        return np.where(there, (mean - entropy) / np.where(there, mean, 1.0), 0.0)


@dataclass(frozen=True)
class AnswerEntropyScaled(BatchComponent):
    """weight *= f(x) of a group, with x in [0, 1] how little its answers agree: semantic entropy / ln(group size).

    f is 1 - strength x (`linear`), exp(-strength x), 1 / (1 + strength x) (`inverse`) or (1 - strength x)^exponent
    (`focal`). A group of one has x = 0. Source: SEED-GRPO, arXiv:2505.12346, whose `measure` is the mean of -ln p over
    clusters; its public code takes `measure="entropy", shape="inverse"`.

    Args:
        measure: `sampled`: -mean_c ln p_c, each cluster of answers once; `entropy`: -sum_c p_c ln p_c.
        shape: f.
        strength: from 0 to 1.
        exponent: of `focal`, above 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.weight import AnswerEntropyScaled
        >>> AnswerEntropyScaled().makes
        (('draw', 'weight'),)
    """

    phase: ClassVar[str] = "weight"

    measure: Literal["sampled", "entropy"] = "sampled"
    shape: Literal["linear", "exponential", "inverse", "focal"] = "linear"
    strength: float = 0.0417
    exponent: float = 2.0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(0.0 <= self.strength <= 1.0, "strength", "give a number from 0 to 1")
        self.require(self.exponent > 0.0, "exponent", "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The clusters of the answers."""
        return needed("draw", "group_id", "answer_cluster", "answer_parsed")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight of each draw."""
        return (("draw", "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, "draw")
        groups = rows.keys("group_id")
        votes = cluster_votes(rows.keys("answer_cluster"), groups, parsed=rows.flags("answer_parsed"), valid=rows.valid)
        entropy = votes.cluster_entropy if self.measure == "sampled" else votes.entropy
        size = group.statistics(np.zeros(len(rows)), groups, valid=rows.valid).count
        unsure = np.nan_to_num(entropy, nan=0.0) / np.log(np.maximum(size, 2.0))
        part = self.strength * unsure
        factor = {
            "linear": 1.0 - part,
            "exponential": np.exp(-part),
            "inverse": 1.0 / (1.0 + part),
            "focal": np.maximum(1.0 - part, 0.0) ** self.exponent,
        }[self.shape]
        return rows.scale(factor[groups])
