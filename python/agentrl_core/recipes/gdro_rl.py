"""GDRO-RL: weight tasks by difficulty, and give hard ones more rollouts (Prompt- and Rollout-GDRO, arXiv:2601.19280).

Difficulties at which the policy has a large loss get more weight. The difficulty p of a task is the share of its last
50 visits in which at least one draw succeeded. Ten bins divide [0, 1] into equal parts. A task changes its bin only if
p is more than 0.03 beyond the bin's border. Let l_b be the mean loss of the tasks of bin b in the batch; the loss of a
task is the mean loss of its draws in the updates (`updates.with_losses()`). Then

    S_b <- 0.88 S_b + 0.12 l_b,    w_b = min(exp(0.65 clip(S_b, -3, 3)), 15),

and the draws of bin b have weight w_b in the next batch. Rollout-GDRO chooses the number of rollouts of each bin by a
bandit with a price that keeps the mean number at 4: `BanditAllocator`, which reads the mean reward instead of the loss.
Advantages and loss are GRPO's, with a KL penalty of 0.001, in 4 optimizer steps a batch.

Equations:
    Read: the paper's sections 2.2 and 3.1 to 3.3, and the public code with its scripts.

    - 5, surrogate: `Policy("sequence_mean")`.
    - 7, prompt loss: `Updates.with_losses`, the mean over a batch's optimizer steps.
    - 10, pass@k: `DifficultyScaled(history=50)` and `RecentVisits(50, "solved")`.
    - 11, bins: the same two components, with ten bins and margin 0.03.
    - 12, score: `DifficultyScaled(smoothing=0.12)`; with `per_share=True` the loss is divided by the bin's share.
    - 14, weights: `DifficultyScaled(coefficient=0.65, score_at_most=3.0)`.
    - 15, distribution: `DifficultyScaled(kind="probability", explore=0.01)`.
    - 16, reweighting: `DifficultyScaled(at_most=15.0)`, the unnormalised weight.
    - 20, arm loss: `BanditAllocator`, with the mean reward instead of minus the prompt loss; not computed: the tests of
      the allocator check it.
    - 19, budget: `BanditAllocator`; not computed: the tests of the allocator check it.
    - 21, dual step: `BanditAllocator(price_rate=0.01)`, at least 0; not computed: the tests of the allocator check it.
    - C1, weight of the code: `DifficultyScaled(kind="probability")`, normalised over all bins and multiplied by their
      number.
    - C2, arm score of the code: left out: it raises the scores of arms with a large loss, equation 20 those with a
      small loss.

Differs:
    - Clip range: one number in the paper, 0.2 and 0.28 in the scripts and here.
    - Beginning of a score: 0 here and in equation 12, the first mean in the code.
    - Order: weights come from the losses of earlier batches, as in the code, since the losses of a batch are known only
      after its updates. The prompt loss is a draw's loss divided by its weight, which also divides the small KL term
      of the reference model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Recipe, group, keys
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, IterationRecord, Rows, StatefulComponent, column_name, draw, option
from agentrl_core.loss import KL, Clip, Policy
from agentrl_core.operators.best_arms import best_arms
from agentrl_core.select import Allocator, ComposedSelector, RecentVisits

if TYPE_CHECKING:
    from agentrl_core import Batch
    from agentrl_core.component import State
    from agentrl_core.select import TaskOutcomes


@dataclass(frozen=True)
class DifficultyScaled(StatefulComponent):
    """Give more weight to tasks in difficulty bins with a large loss.

    The module docstring has the formula. S_b does not change if a batch has no task of bin b. A new task is in the
    middle bin. The weights of a batch use the bins and S from before the batch.

    Args:
        key: draw column of text or whole numbers that identifies the task in every batch.
        column: draw column of losses in the closed batch: `loss`, from `Updates.with_losses`, is divided by the draw's
            weight; another column is used as it is.
        history: number of last visits of a task that count.
        bins: number of bins.
        hysteresis: a task changes its bin only if p is farther than this beyond the bin's border.
        smoothing: share of the new loss in S_b.
        coefficient: factor of S_b in the exponent.
        score_at_most: the largest |S_b| that counts.
        at_most: the largest weight.
        per_share: whether to divide the loss of a bin by the bin's share of the batch's tasks, so that the frequency of
            a bin does not matter.
        kind: `exponential`: the weight is w_b; `probability`: the weight is the number of bins times the probability
            q_b = (1 - explore) w_b / sum w + explore / bins.
        explore: uniform share of q_b for `probability`.

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
        """Return whether `column` is the loss of the updates."""
        return self.column == "loss"

    def initial_state(self) -> dict[str, Any]:
        """Return a state without tasks; a task's row of `visits` is oldest first: 1 success, 0 failure, -1 no visit."""
        return {"tasks": [], "visits": [], "bins": [], "scores": [0.0] * self.bins}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        """Return `batch` with the scaled `weight` of draws."""
        rows = Rows(batch, "draw")
        names, tasks, _ = _numbered(state["tasks"], rows.names(self.key))
        bins = self._bins(state, len(names))
        weights = self._weights(np.array(state["scores"]))
        return rows.scale(np.where(rows.valid, weights[bins[tasks]], 1.0))

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        """Return the state of tasks and bins with the visits and losses of the iteration added."""
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
        recorded = visits >= 0
        difficulties = (visits * recorded).sum(axis=1) / np.maximum(recorded.sum(axis=1), 1)
        low, high = bins / self.bins - self.hysteresis, (bins + 1) / self.bins + self.hysteresis
        stays = (np.arange(len(names)) < len(state["tasks"])) & (low <= difficulties) & (difficulties <= high)
        within = np.minimum((difficulties * self.bins).astype(np.int64), self.bins - 1)
        bins_next = np.where(visited & ~stays, within, bins)
        known = recorded.any(axis=1)
        return {
            "tasks": np.array(names, dtype=object)[known].tolist(),
            "visits": visits[known].tolist(),
            "bins": bins_next[known].tolist(),
            "scores": self._scores(state, rows, tasks, bins[places]).tolist(),
        }

    def _bins(self, state: dict[str, Any], count: int) -> NDArray[np.int64]:
        """Return the bin of each of `count` tasks; new tasks are in the middle bin."""
        bins = np.full(count, self.bins // 2, dtype=np.int64)
        bins[: len(state["bins"])] = state["bins"]
        return bins

    def _scores(
        self, state: dict[str, Any], rows: Rows, tasks: NDArray[np.uint32], bins: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the score of each bin, updated by a batch whose tasks, by first appearance, lie in `bins`."""
        scores = np.array(state["scores"])
        if not len(rows):
            return scores
        of_draws = rows.values(self.column)
        known = rows.valid & np.isfinite(of_draws)  # all False in an iteration without updates
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
    """Number the tasks of a batch after the known ones.

    Return the names of all tasks, the index of each row's task, and the indices in order of first appearance.
    """
    places = keys.dense([*known, *names]) if known or names else np.zeros(0, dtype=np.uint32)
    rows = places[len(known) :]
    _, first = np.unique(rows, return_index=True)
    first.sort()
    new = first[rows[first] >= len(known)]
    return [*known, *np.array(names, dtype=object)[new].tolist()], rows, rows[first]


@dataclass(frozen=True)
class BanditAllocator(Allocator):
    """Choose numbers of rollouts within the total by a bandit for each difficulty, which pays a price for each rollout.

    Tasks lie in bins by the tracker's column `bin` (`RecentVisits(bins=)`), or else by their estimate. Bin b plays arm
    n_b, all bins together the choice that maximises sum_b ln p_b(n_b) under sum of rollouts = total, where

        p_b = (1 - explore) softmax(S_b) + explore / arms
        S_b(n_b) <- S_b(n_b) + rate (J_b - price n_b)        of the arm that was played, J_b the bin's mean reward
        price <- max(0, price + price_rate (mean n - average))

    Source: Rollout-GDRO, arXiv:2601.19280; where text and code differ in the sign of a gain, a larger reward is better.

    Args:
        low: the smallest arm.
        high: the largest arm.
        bins: number of bins of success rates.
        rate: learning rate of the arms' scores.
        explore: share of the probability that is uniform over arms.
        price_rate: learning rate of the price.
        average: target mean of rollouts per task.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.gdro_rl import BanditAllocator
        >>> BanditAllocator(low=2, high=4, bins=3).initial_state()["scores"].shape
        (3, 3)
    """

    low: int = option(2, at_least=1)
    high: int = option(8, at_least=1)
    bins: int = option(10, at_least=1)
    rate: float = option(0.65, above=0)
    explore: float = option(0.01, above=0, at_most=1)
    price_rate: float = option(0.01, at_least=0)
    average: float = option(4.0, above=0)

    def check_options(self) -> None:
        """Require low <= high."""
        self.require(self.low <= self.high, "low", f"give a number up to high={self.high}")

    def initial_state(self) -> State:
        """Return a score of 0 for each number of rollouts in each bin, and a price of 0."""
        return {"scores": np.zeros((self.bins, self.high - self.low + 1)), "price": 0.0}

    def _bins(self, known: Mapping[str, NDArray[np.float64]]) -> NDArray[np.int64]:
        bins = known.get("bin", known["estimate"] * self.bins)
        return np.clip(bins.astype(np.int64), 0, self.bins - 1)

    def counts(self, state: State, known: Mapping[str, NDArray[np.float64]], total: int) -> NDArray[np.int32]:
        """Return the number of rollouts of each task; all tasks of a bin get the same number."""
        bins = self._bins(known)
        scores = state["scores"]
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances = (1 - self.explore) * chances / chances.sum(axis=1, keepdims=True) + self.explore / scores.shape[1]
        sizes = np.bincount(bins, minlength=self.bins).astype(np.uint32)
        arms = np.arange(self.low, self.high + 1, dtype=np.uint32)
        played = best_arms(np.log(chances).ravel(), sizes, arms, total=total)
        return arms[played[bins]].astype(np.int32)

    def next(self, state: State, visits: TaskOutcomes, known: Mapping[str, NDArray[np.float64]]) -> State:
        """Return the scores of the numbers of rollouts, and the price, after an iteration."""
        bins, counts = self._bins(known), visits.counts
        rewards = visits.sums(np.nan_to_num(visits.rewards))
        scores = state["scores"].copy()
        for number in np.unique(bins).tolist():
            of_bin = bins == number
            rollouts = int(counts[of_bin].sum())
            played = int(np.clip(np.round(rollouts / of_bin.sum()), self.low, self.high))
            gain = rewards[of_bin].sum() / rollouts - state["price"] * played
            scores[number, played - self.low] += self.rate * gain
        mean = float(counts.mean()) if len(counts) else self.average
        price = max(0.0, state["price"] + self.price_rate * (mean - self.average))
        return {"scores": scores, "price": price}


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
