"""Weights by how difficult tasks turned out to be."""

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
class DifficultyScaled(StatefulComponent):
    """weight *= min(w_b, most) of the difficulty bin b that a task is in, which grows where its tasks lose much.

    A task's difficulty p is the share of its last `history` visits in which at least one draw succeeded. Bins cut [0,
    1] into equal parts; a task changes its bin only when p is more than `hysteresis` beyond its border. With the mean
    loss l_b over the tasks of bin b in the batch (each the mean of its draws)

        S_b <- (1 - smoothing) S_b + smoothing l_b,    w_b = exp(rate * clip(S_b, -limit, limit))

    and S_b stays where the batch has no task of the bin. A task that is new is in the middle bin. The bins are those
    before this batch. Source: GDRO-RL (Prompt-GDRO), arXiv:2601.19280.

    Args:
        key: draw column of text or whole numbers that names the task in every batch.
        column: draw column of losses, as the model has them now; or what stands for them.
        history: visits, at least 1.
        bins: at least 1.
        hysteresis: at least 0.
        smoothing: 0 to 1.
        rate: at least 0.
        limit: of S_b, above 0.
        most: the largest weight, above 0.
        by: the `loss` of a bin, or its loss over the share of the batch's tasks that are in it (`share`), so that how
            often a bin comes does not matter.
        weighing: w_b itself (`exponential`), or as its public code by the probabilities of the bins, as many times as
            there are bins: q_b = (1 - explore) w_b / sum w + explore / bins (`probability`).
        explore: for `probability`, 0 to 1.

    Raises:
        RecipeError: an option is out of range, or no loss is known.

    Example:
        >>> from agentrl_core.weight import DifficultyScaled
        >>> DifficultyScaled(bins=2).initial_state()
        {'visits': {}, 'bins': {}, 'scores': [0.0, 0.0]}
    """

    phase: ClassVar[str] = "weight"

    key: str = "task_id"
    column: str = "policy_loss"
    history: int = 50
    bins: int = 10
    hysteresis: float = 0.03
    smoothing: float = 0.12
    rate: float = 0.65
    limit: float = 3.0
    most: float = 15.0
    by: Literal["loss", "share"] = "loss"
    weighing: Literal["exponential", "probability"] = "exponential"
    explore: float = 0.01

    def check_options(self) -> None:
        """Ranges as documented."""
        for option in ("key", "column"):
            self.require(bool(getattr(self, option)), option, "name a column")
        for option in ("history", "bins"):
            self.require(getattr(self, option) >= 1, option, "give a number of at least 1")
        for option in ("hysteresis", "rate"):
            self.require(getattr(self, option) >= 0.0, option, "give a number of at least 0")
        for option in ("smoothing", "explore"):
            self.require(0.0 <= getattr(self, option) <= 1.0, option, "give a number from 0 to 1")
        for option in ("limit", "most"):
            self.require(getattr(self, option) > 0.0, option, "give a number above 0")

    @property
    def needs(self) -> tuple[Column, ...]:
        """Tasks, losses, and whose draws succeeded."""
        return needed("draw", self.key, self.column, "success")

    @property
    def makes(self) -> tuple[Column, ...]:
        """The weight of each draw."""
        return (("draw", "weight"),)

    def initial_state(self) -> dict[str, Any]:
        """No task seen."""
        return {"visits": {}, "bins": {}, "scores": [0.0] * self.bins}

    def advance(self, batch: Batch, state: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
        """Return `batch` with its `weight` scaled, and what is known of tasks and bins."""
        rows = Rows(batch, "draw")
        names = rows.names(self.key)
        tasks = keys.dense(names)
        known = list(dict.fromkeys(names))
        bins = np.array([state["bins"].get(name, self.bins // 2) for name in known], dtype=np.int64)
        scores = self._scores(rows, tasks, bins, np.array(state["scores"]))
        batch = rows.scale(np.where(rows.valid, self._weights(scores)[bins[tasks]], 1.0))
        found = group.statistics(rows.flags("success").astype(np.float64), tasks, valid=rows.valid)
        visits, places = dict(state["visits"]), dict(state["bins"])
        for name, count, most in zip(known, found.count.tolist(), found.most.tolist(), strict=True):
            if count:
                visits[name] = [*visits.get(name, []), int(most > 0.0)][-self.history :]
                places[name] = self._place(sum(visits[name]) / len(visits[name]), places.get(name))
        return batch, {"visits": visits, "bins": places, "scores": scores.tolist()}

    def _scores(
        self, rows: Rows, tasks: NDArray[np.uint32], bins: NDArray[np.int64], scores: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """S of each bin, with this batch."""
        if not len(rows):
            return scores
        losses = group.statistics(rows.values(self.column), tasks, valid=rows.known(self.column)).mean
        there = np.isfinite(losses)
        own = bins[there]
        counts = np.bincount(own, minlength=self.bins)
        seen = counts > 0
        means = np.zeros(self.bins)
        means[own] = group.statistics(losses[there], own).mean[keys.dense(own)]
        if self.by == "share":
            means[seen] /= counts[seen] / counts.sum()
        following: NDArray[np.float64] = (1.0 - self.smoothing) * scores + self.smoothing * means
        return np.where(seen, following, scores)

    def _weights(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        weights = np.exp(self.rate * np.clip(scores, -self.limit, self.limit))
        if self.weighing == "probability":
            weights = self.bins * ((1.0 - self.explore) * weights / weights.sum() + self.explore / self.bins)
        return np.asarray(np.minimum(weights, self.most))

    def _place(self, difficulty: float, before: int | None) -> int:
        """The bin of a task that was in bin `before`."""
        place = min(int(difficulty * self.bins), self.bins - 1)
        if before is None:
            return place
        low, high = before / self.bins - self.hysteresis, (before + 1) / self.bins + self.hysteresis
        return before if low <= difficulty <= high else place
