"""A price on length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component.component import BatchComponent, Column
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group, keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class LengthPenalty(BatchComponent):
    """The score minus weight * min(max(L - free, 0) / (limit - free), cap): nothing up to `free`, linear beyond.

    At level `step` it works on the reward of steps. Sources: DAPO's soft overlong punishment arXiv:2503.14476 (`free`
    the longest minus the buffer, `limit` the longest); MARS arXiv:2510.15414 (`level="step", free=2048, limit=4085,
    weight=0.5`); Apriel's length reward (`free=0, cap=1.0, scale_by="group_mean", only="success"`).

    Args:
        free: tokens without a price, at least 0.
        limit: where the price is `weight`; above `free`.
        weight: the price at `limit`, at least 0.
        cap: the highest price, in units of `weight`; None: no limit.
        scale_by: `group_mean`: the price is multiplied by the mean score of the group.
        only: of which draws: `all`, those that had `success`, or `failure`.
        count: which tokens: the `trained` ones, or `all` from the first sampled token to the last, tool results
            between them included.
        level: `draw` (column `score`) or `step` (column `reward`).

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.reward import LengthPenalty
        >>> LengthPenalty(free=3072, limit=4096).needs
        (('draw', 'score'),)
    """

    phase: ClassVar[str] = "reward"

    free: int
    limit: int
    weight: float = 1.0
    cap: float | None = None
    scale_by: Literal["none", "group_mean"] = "none"
    only: Literal["all", "success", "failure"] = "all"
    count: Literal["all", "trained"] = "all"
    level: Literal["draw", "step"] = "draw"

    def check_options(self) -> None:
        """Ranges as documented."""
        self.require(self.free >= 0, "free", "give a number of at least 0")
        self.require(self.limit > self.free, "limit", f"give a number above free={self.free}")
        self.require(self.weight >= 0.0, "weight", "give a number of at least 0")
        self.require(self.cap is None or self.cap > 0.0, "cap", "give a number above 0, or None")

    @property
    def _target(self) -> str:
        return "score" if self.level == "draw" else "reward"

    @property
    def needs(self) -> tuple[Column, ...]:
        """The score, the groups whose mean scales the price, and whose draws succeeded."""
        names = [self._target]
        names += ["group_id"] if self.scale_by == "group_mean" else []
        return needed(self.level, *names, *(() if self.only == "all" else ("success",)))

    @property
    def makes(self) -> tuple[Column, ...]:
        """The score again."""
        return needed(self.level, self._target)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another column `score` on draws, or `reward` on steps."""
        rows = Rows(batch, self.level)
        score = rows.values(self._target)
        price = _core.reward_excess_penalty(
            rows.trained if self.count == "trained" else self._span(rows),
            float(self.free),
            float(self.limit),
            self.weight,
            self.cap,
        )
        if self.scale_by == "group_mean":
            groups = rows.keys("group_id")
            price = price * group.statistics(score, groups, valid=np.isfinite(score)).mean[groups]
        if self.only != "all":
            price = np.where(rows.flags("success") == (self.only == "success"), price, 0.0)
        return rows.write(**{self._target: score + price})

    @staticmethod
    def _span(rows: Rows) -> NDArray[np.float64]:
        """Tokens from the first sampled one of a row to the last."""
        tokens = Rows(rows.batch, "token")
        within = tokens.within(rows.level)
        found = group.statistics(tokens.values("position"), within)
        span = np.zeros(len(rows))
        span[within] = (found.most - found.least + 1.0)[keys.dense(within)]
        return span
