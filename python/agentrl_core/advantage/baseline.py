"""Scores minus a baseline other than the group mean: given, weighted, greedy, optimal or tracked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.advantage.relative_to_group import Normalisation
from agentrl_core.component import (
    BatchComponent,
    Column,
    IterationRecord,
    Rows,
    StatefulComponent,
    column_name,
    draw,
    option,
    token,
)
from agentrl_core.operators import group, keys, returns
from agentrl_core.operators.group.baseline import decayed_beta, ema_mean, shrunk_mean, window_quantile
from agentrl_core.operators.group.reduce import log_mean_exp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core.data.batch import Batch


@dataclass(frozen=True)
class BaselineRelative(BatchComponent):
    """Score of a draw minus a baseline other than the plain group mean.

        advantage = score - b

    By `kind`, b is:

    - `column`: the column `column`, such as a task's value;
    - `weighted`: sum w r / sum w over the group, w the column `column` (the plain mean if all weights are 0):
      OPO arXiv:2505.23585 (`column="trained_tokens"`), VCPO arXiv:2602.17616 (w = ratio^2 * |score gradient|^2: the
      product of the squares has to be in the column);
    - `shrunk`: the group's mean, shrunk towards the prior `column` as far as noise explains their distance (V0.5
      arXiv:2603.10848);
    - `log_mean_exp`: temperature * ln mean exp(r / temperature) over the group (A*-PO, OPMD).

    Draws without a score neither vote nor get a value.

    Args:
        kind: as above.
        column: baseline, weight or prior of each draw; not for `log_mean_exp`.
        group_by: comma-joined key columns of the groups, or `batch`.
        variance: for `shrunk`: variance of one score, above 0: 0.25 for scores 0 and 1, 1 for scores -1 and 1.
        temperature: for `log_mean_exp`, above 0.
        singleton: for `weighted` and `log_mean_exp`: the only scored draw of a group gets 0 (`zero`), or its score,
            with baseline 0 (`raw`, verl's OPO).
        leave_one_out: for `weighted` and `shrunk`: whether a draw is excluded from its own baseline.
        positive_only: whether advantages below 0 become 0.
        at_most: the largest size of an advantage; None: any.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import BaselineRelative
        >>> BaselineRelative(kind="weighted", column="trained_tokens", singleton="raw").needs
        (draw('score'), draw('group_id'))
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    kind: Literal["column", "weighted", "shrunk", "log_mean_exp"] = "column"
    column: str = column_name("", level="draw", optional=True)
    group_by: str = column_name("group_id", level="draw")
    variance: float = option(0.25, above=0)
    temperature: float = option(0.5, above=0)
    singleton: Literal["zero", "raw"] = "zero"
    leave_one_out: bool = False
    positive_only: bool = False
    at_most: float | None = option(None, above=0)

    def check_options(self) -> None:
        """Check the options of each kind of baseline."""
        needs_column = self.kind != "log_mean_exp"
        remedy = "name a column" if needs_column else "leave column empty for kind='log_mean_exp'"
        self.require(bool(self.column) == needs_column, "column", remedy)
        votes = self.kind in ("weighted", "shrunk")
        self.require(votes or not self.leave_one_out, "leave_one_out", "choose kind weighted or shrunk, or give False")
        of_group = self.kind in ("weighted", "log_mean_exp")
        remedy = 'choose kind weighted or log_mean_exp, or singleton="zero"'
        self.require(of_group or self.singleton == "zero", "singleton", remedy)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        score, groups = rows.values("score"), rows.keys(self.group_by)
        if self.kind == "weighted":
            advantages = self._weighted(rows, score, groups)
        else:
            if self.kind == "column":
                baseline = rows.values(self.column)
            elif self.kind == "shrunk":
                prior = np.where(rows.valid, rows.values(self.column), 0.0)
                baseline = shrunk_mean(
                    score, groups, prior, variance=self.variance, leave_one_out=self.leave_one_out, valid=rows.valid
                )
            else:
                means = log_mean_exp(score, groups, temperature=self.temperature, valid=rows.valid)
                baseline = means[groups]
            advantages = np.where(rows.valid, score - baseline, 0.0)
        if self.singleton == "raw":
            alone = group.statistics(score, groups, valid=rows.valid).count[groups] == 1
            advantages = np.where(rows.valid & alone, score, advantages)
        bound = np.inf if self.at_most is None else self.at_most
        return rows.write(advantage=np.clip(advantages, 0.0 if self.positive_only else -bound, bound))

    def _weighted(self, rows: Rows, score: NDArray[np.float64], groups: NDArray[np.uint32]) -> NDArray[np.float64]:
        weights = rows.values(self.column)
        total = group.sums(np.where(rows.valid, weights, 0.0), groups)[groups]
        compare = Normalisation(
            center="leave_one_out" if self.leave_one_out else "mean", scale="none", votes_at_least=1
        )
        return compare.compare(score, groups, valid=rows.valid, weights=np.where(total > 0.0, weights, 1.0))


@dataclass(frozen=True)
class OptimalTokenBaseline(BatchComponent):
    """Score minus, at every trained token, the baseline that minimises the gradient's variance.

        advantage = score - b_t,
        w = 1 - 2 p + sum p^2,  W_it = sum_{j <= t} w_ij,  b_t = sum_i R_i W_it / (sum_i W_it + eps)

    over the draws that have a trained token at place t, p the probability of the token and sum p^2 the sum over the
    vocabulary (`sum_probability_squared`, which only a model can compute). Draws without a score neither vote nor get a
    value. Source: verl's `tir_optimal_token_baseline` (`align="policy"`) and `optimal_token_baseline` (`sequence`).

    Args:
        align: tokens at the same place: the k-th trained token (`policy`), or the k-th action token (`sequence`).
        ratio: name of a token column, an importance weight: w is multiplied by its square. Empty: none.
        group_by: comma-joined key columns of the groups.
        eps: added to the sum of weights, at least 0.
        zero_tail: whether the tail of the longest draw beyond the second longest gets b = 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage.baseline import OptimalTokenBaseline
        >>> OptimalTokenBaseline().makes
        (token('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (
        draw("score"),
        token("behaviour_logprob"),
        token("sum_probability_squared", model="policy"),
    )
    makes: ClassVar[tuple[Column, ...]] = (token("advantage"),)

    align: Literal["policy", "sequence"] = "policy"
    ratio: str = column_name("", level="token", optional=True)
    group_by: str = column_name("group_id", level="draw")
    eps: float = option(1e-8, at_least=0)
    zero_tail: bool = True

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on tokens."""
        tokens = Rows(batch, "token")
        valid = tokens.valid
        energy = 1.0 - 2.0 * np.exp(tokens.values("behaviour_logprob")) + tokens.values("sum_probability_squared")
        if self.ratio:
            energy = energy * tokens.values(self.ratio) ** 2
        advantages = returns.optimal_token_baseline(
            np.where(valid, tokens.values("score"), 0.0),
            np.where(valid, energy, 0.0),
            Rows(batch, "draw").keys(self.group_by),
            offsets=batch.offsets("token")[batch.offsets("step")],
            mask=valid,
            align=self.align,
            eps=self.eps,
            zero_tail=self.zero_tail,
        )
        return tokens.write(advantage=np.where(valid, advantages, 0.0))


@dataclass(frozen=True)
class TrackedBaseline(StatefulComponent):
    """Score of a draw minus a baseline tracked over iterations, per task, per role, or over all groups.

        advantage = score - b

    By `kind`, b is:

    - `beta`: the discounted success rate of the draw's `key`: b = alpha / (alpha + beta), then alpha <- decay * alpha
      + sum r, beta <- decay * beta + sum (1 - r). MSSR, arXiv:2512.18215, for scores from 0 to 1;
    - `ema`: the moving mean of the `key`: b <- decay * b + (1 - decay) * mean r. Vision-Zero (`key="agent", decay=0.9,
      initial=0.0, update="before"` as in its public code);
    - `window`: the median of the group means of the last steps, at most `capacity` of them. SPEAR, arXiv:2509.22601
      (`positive_only=True`, in its replay pass). Until there is a group mean, advantages are 0.

    An iteration uses the baseline tracked before it. Draws without a score neither vote nor get a value.

    Args:
        kind: as above.
        key: for `beta` and `ema`: a draw column of text or integers with the same meaning in every batch.
        decay: 0 to 1; with `adapt`, the largest.
        adapt: for `beta`: `none`; or by the draw column `policy_kl`, so that it decays faster if the policy moves more.
            `window`: decay - (decay - decay_at_least) * min(mean KL / kl_target, 1), with the mean over the last
            `window` batches; `window_peak`: by the same mean, from decay_at_least at 0 up to decay at kl_target, and
            decay_at_least beyond (MSSR); `since_visit`: clip(2^(-D / kl_target), decay_at_least, decay) of each key, D
            the mean KL of its draws since it was last visited (MSSR's public code).
        decay_at_least: the smallest decay, 0 to `decay`.
        kl_target: above 0; for `since_visit` the KL that halves the evidence.
        window: batches, at least 1.
        initial: for `beta` and `ema`: b of a new key.
        update: for `ema`: update b after use (`after`) or before (`before`).
        capacity: for `window`: number of group means to keep, at least 1.
        scale: for `window`: divide by the median of the groups' standard deviations + 1e-6 (`window`), or not.
        positive_only: whether advantages below 0 become 0.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.advantage import TrackedBaseline
        >>> TrackedBaseline().initial_state()
        {'keys': {}, 'kl': []}
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (draw("score"),)
    makes: ClassVar[tuple[Column, ...]] = (draw("advantage"),)

    kind: Literal["beta", "ema", "window"] = "beta"
    key: str = option("task_id", filled=True)
    decay: float = option(0.96, at_least=0, at_most=1)
    adapt: Literal["none", "window", "window_peak", "since_visit"] = "none"
    decay_at_least: float = option(0.875, at_least=0, at_most=1)
    kl_target: float = option(0.06, above=0)
    window: int = option(20, at_least=1)
    initial: float = 0.5
    update: Literal["after", "before"] = "after"
    capacity: int = option(2048, at_least=1)
    scale: Literal["none", "window"] = "none"
    positive_only: bool = False

    def check_options(self) -> None:
        """Require that options fit `kind`, and `decay_at_least` <= `decay` if the decay adapts."""
        self.require(self.adapt == "none" or self.kind == "beta", "adapt", 'choose kind="beta", or adapt="none"')
        ordered = self.adapt == "none" or self.decay_at_least <= self.decay
        self.require(ordered, "decay_at_least", f"give a number of at most decay={self.decay}")
        self.require(self.update == "after" or self.kind == "ema", "update", 'choose kind="ema", or update="after"')
        self.require(self.scale == "none" or self.kind == "window", "scale", 'choose kind="window", or scale="none"')

    def own_needs(self) -> Iterable[Column]:
        """Yield the columns to read: the key of the baseline (`group_id` for `window`), and the policy's KL if used."""
        yield draw("group_id" if self.kind == "window" else self.key)
        if self.adapt != "none":
            yield draw("policy_kl")

    def initial_state(self) -> dict[str, Any]:
        """Return the empty state."""
        return {"means": [], "stds": []} if self.kind == "window" else {"keys": {}, "kl": []}

    def add_columns(self, state: dict[str, Any], batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on draws."""
        rows = Rows(batch, "draw")
        advantages, _ = self._compared(rows, state)
        if self.positive_only:
            advantages = np.maximum(advantages, 0.0)
        return rows.write(advantage=np.where(rows.valid, advantages, 0.0))

    def next(self, state: dict[str, Any], closed: IterationRecord) -> dict[str, Any]:
        """Return the state after the iteration."""
        _, following = self._compared(Rows(closed.batch, "draw"), state)
        return following

    def _compared(self, rows: Rows, state: dict[str, Any]) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Return advantages from a state, and the next state."""
        return self._against_window(rows, state) if self.kind == "window" else self._against_keys(rows, state)

    def _against_keys(self, rows: Rows, state: dict[str, Any]) -> tuple[NDArray[np.float64], dict[str, Any]]:
        score, names, kl_window = rows.values("score"), rows.names(self.key), state["kl"]
        if self.kind == "ema":
            baseline, means = ema_mean(
                state["keys"],
                score,
                names,
                decay=self.decay,
                initial=self.initial,
                update=self.update,
                valid=rows.valid,
            )
            return score - baseline, {"keys": means, "kl": kl_window}
        decay: float | NDArray[np.float64] = self.decay
        if self.adapt == "since_visit":
            key = keys.dense(names)
            counted = rows.valid & np.isfinite(rows.values("policy_kl"))
            distance = np.nan_to_num(group.statistics(rows.values("policy_kl"), key, valid=counted).mean, nan=0.0)
            decay = np.clip(np.exp2(-distance / self.kl_target), self.decay_at_least, self.decay)[key]
        elif self.adapt != "none":
            distance = group.statistics(rows.values("policy_kl"), rows.keys("batch"), valid=rows.valid).mean
            kl_window = [*kl_window, *distance[np.isfinite(distance)].tolist()][-self.window :]
            far = float(np.mean(kl_window)) / self.kl_target if kl_window else 0.0
            share = min(far, 1.0)
            if self.adapt == "window_peak":
                share = 1.0 - far if far <= 1.0 else 1.0
            decay -= (self.decay - self.decay_at_least) * share
        baseline, known = decayed_beta(state["keys"], score, names, decay=decay, initial=self.initial, valid=rows.valid)
        return score - baseline, {"keys": known, "kl": kl_window}

    def _against_window(self, rows: Rows, state: dict[str, Any]) -> tuple[NDArray[np.float64], dict[str, Any]]:
        score = rows.values("score")
        of_group = group.statistics(score, rows.keys("group_id"), valid=rows.valid)
        several, nonempty = of_group.count > 1, of_group.count > 0
        mean, means = window_quantile(state["means"], of_group.mean[nonempty], capacity=self.capacity, q=0.5)
        std, stds = window_quantile(state["stds"], of_group.std[several], capacity=self.capacity, q=0.5)
        spread = (std or 0.0) + 1e-6 if self.scale == "window" else 1.0
        advantages = np.zeros(len(rows)) if mean is None else (score - mean) / spread
        return advantages, {"means": means, "stds": stds}
