"""Noise on scores, so that groups of equal scores have a direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import _core
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class Dither(BatchComponent):
    """The score plus noise of standard deviation amplitude / sqrt(3): uniform in [-amplitude, amplitude], or normal.

    The noise of a draw follows from `seed`, its iteration and its trajectory. The score without noise is kept as
    `score_clean`, for filters. Source: ReDit, arXiv:2506.18631.

    Args:
        amplitude: at least 0.
        law: `uniform` or `normal`.
        only_if_std_below: only groups whose scores have a smaller standard deviation get noise; None: all do.
        seed: of the noise, at least 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import Dither
        >>> Dither().makes
        (('draw', 'score'), ('draw', 'score_clean'))
    """

    phase: ClassVar[str] = "reward"

    amplitude: float = 0.05
    law: Literal["uniform", "normal"] = "uniform"
    only_if_std_below: float | None = None
    seed: int = 0

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.amplitude >= 0.0, "amplitude", "give a number of at least 0")
        self.require(
            self.only_if_std_below is None or self.only_if_std_below > 0.0,
            "only_if_std_below",
            "give a number above 0, or None",
        )
        self.require(self.seed >= 0, "seed", "give a number of at least 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """The score, and what the noise is keyed by."""
        groups = () if self.only_if_std_below is None else ("group_id",)
        return needed("draw", "score", "iteration", "trajectory_id", *groups)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score with noise, and without."""
        return needed("draw", "score", "score_clean")

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the columns `score` and `score_clean` on draws."""
        rows = Rows(batch, "draw")
        score = rows.values("score")
        noisy = rows.valid
        if self.only_if_std_below is not None:
            groups = rows.keys("group_id")
            std = group.statistics(score, groups, valid=rows.valid).std[groups]
            noisy = noisy & (np.nan_to_num(std, nan=0.0) < self.only_if_std_below)
        iteration, trajectory = (batch.column(name, "draw").astype(np.int64) for name in ("iteration", "trajectory_id"))
        ids = (iteration << 32) ^ trajectory
        made = score.copy()
        made[noisy] = _core.reward_dither(score[noisy], ids[noisy], self.seed, self.amplitude, self.law)
        return rows.write(score=made, score_clean=score)
