"""GDRO-RL: weigh tasks by difficulty, and give hard ones more rollouts (Prompt- and Rollout-GDRO, arXiv:2601.19280).

Weight goes to the difficulties at which the policy loses most. A task's difficulty p is the share of its last 50
visits in which at least one draw succeeded; ten bins cut [0, 1] into equal parts, and a task changes its bin only
when p is more than 0.03 beyond its border. With the mean loss l_b over the tasks of bin b in the batch (each the mean
of what its draws lost in the updates: `updates.with_losses()`)

    S_b <- 0.88 S_b + 0.12 l_b,    w_b = min(exp(0.65 clip(S_b, -3, 3)), 15),

the draws of bin b weigh w_b in the next batch. Rollout-GDRO chooses the number of rollouts of each bin by a bandit
under a price, which keeps their mean at 4: `BanditAllocator`, which takes the mean reward instead of the loss.
Advantages and loss are GRPO's, with a penalty of 0.001, in 4 optimizer steps a batch.

Equations:
    Read: the paper's sections 2.2 and 3.1 to 3.3, and the public code with its scripts.

    - 5, surrogate: `Policy("sequence_mean")`.
    - 7, prompt loss: `Updates.with_losses`, the mean over a batch's optimizer steps.
    - 10, pass@k: `DifficultyScaled(history=50)` and `RecentVisits(50, "solved")`.
    - 11, bins: the same, ten bins, margin 0.03.
    - 12, score: `DifficultyScaled(smoothing=0.12)`; divided by the bin's share with `per_share=True`.
    - 14, weights: `DifficultyScaled(coefficient=0.65, score_at_most=3.0)`.
    - 15, distribution: `DifficultyScaled(kind="probability", explore=0.01)`.
    - 16, reweighting: `DifficultyScaled(at_most=15.0)`, the unnormalised weight.
    - 20, arm loss: `BanditAllocator`, with the mean reward in place of - the prompt loss; not computed: in the tests of
      allocators.
    - 19, budget: `BanditAllocator`; not computed: the same.
    - 21, dual step: `BanditAllocator(price_rate=0.01)`, at least 0; not computed: the same.
    - C1, weight of the code: `DifficultyScaled(kind="probability")`, over all bins and times their number.
    - C2, arm score of the code: left out: it raises arms of large loss, equation 20 those of small loss.

Differs:
    - Clip range: one number in the paper, 0.2 and 0.28 in the scripts and here.
    - Beginning of a score: 0 here and in equation 12, the first mean in the code.
    - Order: weights come from the losses of the batches before, as in the code, since a batch's own are known after its
      updates. The prompt loss is a draw's loss divided by its weight; so is the small term of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, group, keys
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, IterationRecord, Rows, StatefulComponent, column_name, draw, option
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.select import ComposedSelector
from agentrl_core.select.allocator import BanditAllocator
from agentrl_core.select.success_trackers import RecentVisits

if TYPE_CHECKING:
    from agentrl_core import Batch


@dataclass(frozen=True)
class DifficultyScaled(StatefulComponent):
    """Tasks as difficult as those at which much is lost weigh more.

    The formula is that of the file. S_b stays where a batch has no task of the bin, and a new task is in the middle
    one. The bins and S are those before the batch.

    Args:
        key: draw column of text or whole numbers that names the task in every batch.
        column: draw column of losses in the closed batch: `loss`, of `Updates.with_losses`, divided by the draw's
            weight; or another one, as it is.
        history: visits of a task that count.
        bins: how many.
        hysteresis: how far beyond its border a task changes its bin.
        smoothing: of S_b.
        coefficient: of S_b in the exponent.
        score_at_most: the largest |S_b| that counts.
        at_most: the largest weight.
        per_share: whether the loss of a bin is divided by the share of the batch's tasks that are in it, so that how
            often a bin comes does not matter.
        kind: w_b itself (`exponential`), or by the probabilities of the bins, as many times as there are bins:
            q_b = (1 - explore) w_b / sum w + explore / bins (`probability`).
        explore: of `probability`.

    Raises:
        RecipeError: an option is out of range, or the closed batch has no losses.

    Example:
        >>> from agentrl_core.recipes.gdro_rl import DifficultyScaled
        >>> DifficultyScaled(bins=2).initial_state()
        {'tasks': [], 'visits': [], 'bins': [], 'scores': [0.0, 0.0]}
    """

    phase: ClassVar[str] = "weight"
    needs: ClassVar[tuple[Column, ...]] = (draw("success"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("weight"),)

    key: str = column_name("task_id", level="draw")
    column: str = option("loss", filled=True)
    history: int = option(50, at_least=1)
    bins: int = option(10, at_least=1)
    hysteresis: float = option(0.03, at_least=0.0)
    smoothing: float = option(0.12, at_least=0.0, at_most=1.0)
    coefficient: float = option(0.65, at_least=0.0)
    score_at_most: float = option(3.0, above=0.0)
    at_most: float = option(15.0, above=0.0)
    per_share: bool = False
    kind: Literal["exponential", "probability"] = "exponential"
    explore: float = option(0.01, at_least=0.0, at_most=1.0)

    @property
    def needs_losses(self) -> bool:
        """Whether the column is that of the updates."""
        return self.column == "loss"

    def initial_state(self) -> dict[str, Any]:
        """No task seen. A task has a row of `visits`, oldest first: 1 if it succeeded, -1 if none was yet."""
        return {"tasks": [], "visits": [], "bins": [], "scores": [0.0] * self.bins}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled."""
        rows = Rows(batch, "draw")
        names, tasks, _ = _numbered(state["tasks"], rows.names(self.key))
        bins = self._bins(state, len(names))
        weights = self._weights(np.array(state["scores"]))
        return rows.scale(np.where(rows.valid, weights[bins[tasks]], 1.0))

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        """State of tasks and bins, with the visits and losses of the iteration added."""
        rows = Rows(closed.batch, "draw")
        names, tasks, places = _numbered(state["tasks"], rows.names(self.key))
        bins = self._bins(state, len(names))
        judged = rows.valid & rows.is_known("success")
        outcomes = group.statistics(rows.flags("success").astype(np.float64), tasks, valid=judged)
        visited = np.zeros(len(names), dtype=np.bool_)
        visited[places[outcomes.count > 0]] = True
        visits = np.full((len(names), self.history), -1, dtype=np.int64)
        if state["visits"]:
            visits[: len(state["visits"])] = state["visits"]
        visits[visited, :-1] = visits[visited, 1:]
        visits[places[outcomes.count > 0], -1] = outcomes.most[outcomes.count > 0] > 0.0
        seen = visits >= 0
        difficulties = (visits * seen).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
        low, high = bins / self.bins - self.hysteresis, (bins + 1) / self.bins + self.hysteresis
        stays = (np.arange(len(names)) < len(state["tasks"])) & (low <= difficulties) & (difficulties <= high)
        within = np.minimum((difficulties * self.bins).astype(np.int64), self.bins - 1)
        bins_next = np.where(visited & ~stays, within, bins)
        known = seen.any(axis=1)
        return {
            "tasks": np.array(names, dtype=object)[known].tolist(),
            "visits": visits[known].tolist(),
            "bins": bins_next[known].tolist(),
            "scores": self._scores(state, rows, tasks, bins[places]).tolist(),
        }

    def _bins(self, state: dict[str, Any], count: int) -> NDArray[np.int64]:
        """The bin of each of `count` tasks, new ones in the middle."""
        bins = np.full(count, self.bins // 2, dtype=np.int64)
        bins[: len(state["bins"])] = state["bins"]
        return bins

    def _scores(
        self, state: dict[str, Any], rows: Rows, tasks: NDArray[np.uint32], bins: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """S of each bin, with this batch; `bins` are those of its tasks, by first appearance."""
        scores = np.array(state["scores"])
        if not len(rows):
            return scores
        of_draws = rows.values(self.column)
        known = rows.valid & np.isfinite(of_draws)  # none in an iteration without updates
        if self.needs_losses:
            weights = rows.values("weight")
            of_draws = np.divide(of_draws, weights, out=np.zeros_like(of_draws), where=weights > 0)
        losses = group.statistics(of_draws, tasks, valid=known).mean
        known = np.isfinite(losses)
        counts = np.bincount(bins[known], minlength=self.bins)
        means = np.bincount(bins[known], weights=losses[known], minlength=self.bins) / np.maximum(counts, 1)
        if self.per_share:
            means *= counts.sum() / np.maximum(counts, 1)
        return np.where(counts > 0, (1.0 - self.smoothing) * scores + self.smoothing * means, scores)

    def _weights(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        weights = np.exp(self.coefficient * np.clip(scores, -self.score_at_most, self.score_at_most))
        if self.kind == "probability":
            weights = self.bins * ((1.0 - self.explore) * weights / weights.sum() + self.explore / self.bins)
        return np.asarray(np.minimum(weights, self.at_most))


def _numbered(known: list[str], names: list[str]) -> tuple[list[str], NDArray[np.uint32], NDArray[np.uint32]]:
    """The known tasks and then a batch's new ones; the place of each row's task; the places by first appearance."""
    places = keys.dense([*known, *names]) if known or names else np.zeros(0, dtype=np.uint32)
    rows = places[len(known) :]
    _, first = np.unique(rows, return_index=True)
    first.sort()
    new = first[rows[first] >= len(known)]
    return [*known, *np.array(names, dtype=object)[new].tolist()], rows, rows[first]


GDRO_RL = Recipe(
    name="gdro_rl",
    source="arXiv:2601.19280",
    select=ComposedSelector(
        track=RecentVisits(50, "solved", bins=10, hysteresis=0.03), count=BanditAllocator(low=2, high=12, average=4.0)
    ),
    advantage=GroupRelative(),
    weight=DifficultyScaled(),
    loss=Policy("sequence_mean", clip=Clip(0.2, 0.28), kl=KL(0.001)),
    minibatches=4,
)
