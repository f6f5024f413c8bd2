"""Scores minus a baseline that is remembered from batch to batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.component import Column, StatefulComponent
from agentrl_core.component.rows import Rows, needed
from agentrl_core.operators import group, keys

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class TrackedBaseline(StatefulComponent):
    """advantage = score - b of each draw, b remembered from batch to batch.

    By `tracker`, b is:

    - `beta`: the discounted success rate of the draw's `key`: b = alpha / (alpha + beta), then alpha <- decay * alpha
      + sum r, beta <- decay * beta + sum (1 - r). MSSR, arXiv:2512.18215, for scores from 0 to 1;
    - `ema`: the moving mean of the `key`: b <- decay * b + (1 - decay) * mean r. Vision-Zero (`key="agent", decay=0.9,
      initial=0.0, update="before"` as in its public code);
    - `window`: the median of the group means of the last steps, at most `capacity` of them. SPEAR, arXiv:2509.22601
      (`positive_only=True`, in its replay pass). While there is none, nobody has an advantage.

    A batch is read, then remembered. Draws without a score neither vote nor get a value.

    Args:
        tracker: as above.
        key: for `beta` and `ema`: a draw column of text or whole numbers that means the same in every batch.
        decay: 0 to 1; with `adapt`, the most it can be.
        adapt: for `beta`: `none`; or by the draw column `policy_kl`, so that it forgets the sooner the more the policy
            moves. `window`: decay - (decay - decay_min) * min(mean KL / kl_target, 1), with the mean over the last
            `window` batches; `since_visit`: clip(2^(-D / kl_target), decay_min, decay) of each key, D the mean KL of
            its draws since it was last visited (MSSR's public code).
        decay_min: the least that decay can be, 0 to `decay`.
        kl_target: above 0; for `since_visit` the KL that halves what is remembered.
        window: batches, at least 1.
        initial: for `beta` and `ema`: b of a key that is new.
        update: for `ema`: subtract b as it was (`after`), or as this batch made it (`before`).
        capacity: for `window`: so many group means are remembered, at least 1.
        scale: for `window`: divide by the median of the groups' standard deviations + 1e-6 (`window`), or not.
        positive_only: advantages below 0 become 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import TrackedBaseline
        >>> TrackedBaseline().initial_state()
        {'keys': {}, 'kl': []}
    """

    phase: ClassVar[str] = "advantage"

    tracker: Literal["beta", "ema", "window"] = "beta"
    key: str = "task_id"
    decay: float = 0.96
    adapt: Literal["none", "window", "since_visit"] = "none"
    decay_min: float = 0.875
    kl_target: float = 0.06
    window: int = 20
    initial: float = 0.5
    update: Literal["after", "before"] = "after"
    capacity: int = 2048
    scale: Literal["none", "window"] = "none"
    positive_only: bool = False

    def check_options(self) -> None:
        """Ranges and combinations as documented."""
        self.require(bool(self.key), "key", "name a column")
        self.require(0.0 <= self.decay <= 1.0, "decay", "give a number from 0 to 1")
        self.require(0.0 <= self.decay_min <= 1.0, "decay_min", "give a number from 0 to 1")
        self.require(self.kl_target > 0.0, "kl_target", "give a number above 0")
        for option in ("window", "capacity"):
            self.require(getattr(self, option) >= 1, option, "give a number of at least 1")
        self.require(self.adapt == "none" or self.tracker == "beta", "adapt", 'choose tracker="beta", or "none"')
        self.require(self.adapt == "none" or self.decay_min <= self.decay, "decay_min", "give at most decay")
        self.require(self.update == "after" or self.tracker == "ema", "update", 'choose tracker="ema", or "after"')
        self.require(self.scale == "none" or self.tracker == "window", "scale", 'choose tracker="window", or "none"')

    @property
    def needs(self) -> tuple[Column, ...]:
        """The score of each draw, what its baseline is kept for, and how far the policy moved."""
        moved = ("policy_kl",) if self.adapt != "none" else ()
        return needed("draw", "score", "group_id" if self.tracker == "window" else self.key, *moved)

    @property
    def makes(self) -> tuple[Column, ...]:
        """The advantage of each draw."""
        return (("draw", "advantage"),)

    def initial_state(self) -> dict[str, Any]:
        """Nothing seen."""
        return {"means": [], "stds": []} if self.tracker == "window" else {"keys": {}, "kl": []}

    def advance(self, batch: Batch, state: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Return `batch` with the column `advantage` on draws, and what is remembered of it."""
        rows = Rows(batch, "draw")
        if self.tracker == "window":
            made, state = self._against_window(rows, state)
        else:
            made, state = self._against_keys(rows, state)
        made = np.where(rows.valid, np.maximum(made, 0.0) if self.positive_only else made, 0.0)
        return rows.write(advantage=made), state

    def _against_keys(self, rows: Rows, state: dict[str, Any]) -> tuple[NDArray[np.float64], dict[str, Any]]:
        score, names, moved = rows.values("score"), rows.names(self.key), state["kl"]
        if self.tracker == "ema":
            baseline, means = group.ema_mean(
                state["keys"],
                score,
                names,
                decay=self.decay,
                initial=self.initial,
                update=self.update,
                valid=rows.valid,
            )
            return score - baseline, {"keys": means, "kl": moved}
        decay: float | NDArray[np.float64] = self.decay
        if self.adapt == "since_visit":
            key = keys.dense(names)
            counted = rows.valid & np.isfinite(rows.values("policy_kl"))
            distance = np.nan_to_num(group.statistics(rows.values("policy_kl"), key, valid=counted).mean, nan=0.0)
            decay = np.clip(np.exp2(-distance / self.kl_target), self.decay_min, self.decay)[key]
        elif self.adapt == "window":
            distance = group.statistics(rows.values("policy_kl"), rows.keys("batch"), valid=rows.valid).mean
            moved = [*moved, *distance[np.isfinite(distance)].tolist()][-self.window :]
            far = float(np.mean(moved)) / self.kl_target if moved else 0.0
            decay -= (self.decay - self.decay_min) * min(far, 1.0)
        baseline, known = group.decayed_beta(
            state["keys"], score, names, decay=decay, initial=self.initial, valid=rows.valid
        )
        return score - baseline, {"keys": known, "kl": moved}

    def _against_window(self, rows: Rows, state: dict[str, Any]) -> tuple[NDArray[np.float64], dict[str, Any]]:
        score = rows.values("score")
        found = group.statistics(score, rows.keys("group_id"), valid=rows.valid)
        mean, means = group.window_quantile(state["means"], found.mean[found.count > 0], capacity=self.capacity, q=0.5)
        std, stds = group.window_quantile(state["stds"], found.std[found.count > 1], capacity=self.capacity, q=0.5)
        spread = (std or 0.0) + 1e-6 if self.scale == "window" else 1.0
        made = np.zeros(len(rows)) if mean is None else (score - mean) / spread
        return made, {"means": means, "stds": stds}
