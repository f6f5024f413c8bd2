"""Off-policy correction: ratios of trained to behaviour policy as weights and filters, with diagnostics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import BatchComponent, Column, Rows, column_name, option, token
from agentrl_core.data.batch import Batch
from agentrl_core.operators import columns, group

_Level = Literal["token", "step", "step_geometric", "sequence", "geometric", "prefix", "prefix_min"]


class Diagnostics(NamedTuple):
    """Measures of the distance of two policies; r is the ratio of a token, w the product of r over a row.

    Attributes:
        effective_sample_size: (sum w)^2 / sum w^2 over rows.
        effective_fraction: effective sample size divided by `rows`.
        k1: mean of -ln r over tokens, an estimate of KL(acted, trained).
        k2: mean of (ln r)^2 / 2.
        k3: mean of r - 1 - ln r.
        chi_squared_token: mean of r^2, minus 1.
        chi_squared_sequence: mean of w^2, minus 1.
        ratio_max: the largest r.
        ratio_min: the smallest r.
        rows: rows with an unmasked token.
        tokens: unmasked tokens.
    """

    effective_sample_size: float
    effective_fraction: float
    k1: float
    k2: float
    k3: float
    chi_squared_token: float
    chi_squared_sequence: float
    ratio_max: float
    ratio_min: float
    rows: int
    tokens: int


def importance_weights(
    log_ratios: object,
    offsets: object,
    *,
    level: _Level = "token",
    at_least: float | None = None,
    at_most: float | None = 2.0,
    kind: Literal["truncate", "mask", "filter", "veto"] = "truncate",
    steps: object | None = None,
    mask: object | None = None,
) -> NDArray[Any]:
    """Importance weights of tokens, factors of the loss.

    With r_t = pi(token) / mu(token): `token` r_t; `step` and `sequence` the product over a step or row;
    `step_geometric` and `geometric` its geometric mean (GSPO, arXiv:2507.18071); `prefix` the product up to the token;
    `prefix_min` r_t times the smallest r before it (MinPRO, arXiv:2601.22718). Weights out of bounds: `truncate` clips
    them (TIS), `mask` sets them to 0 (IcePop, MIS), `filter` sets them to 0 and all others to 1, `veto` sets the whole
    row to 0. Log-ratios of tokens with a common weight are clipped to +-20, as verl's `rollout_corr_helper` does.

    Args:
        log_ratios: n numbers, log pi - log mu.
        offsets: m + 1 whole numbers; row i is `log_ratios[offsets[i]:offsets[i + 1]]`; rows cover all tokens.
        level: see above.
        at_least: above 0; None: no lower bound.
        at_most: None: no upper bound.
        kind: see above.
        steps: offsets of the steps (turns, chunks), for step levels; no step may cross a row's end.
        mask: n booleans, True for sampled tokens; others are ignored and get 0. None: all.

    Returns:
        `float32[n]` for float32 log_ratios, else `float64[n]`.

    Raises:
        InvalidInputError: lengths differ, an unmasked log-ratio is not finite, bounds are not 0 < at_least
            <= at_most, or steps are missing or cross rows.

    Example:
        >>> from agentrl_core.weight.importance import importance_weights
        >>> importance_weights([0.0, 1.0, -1.0], [0, 3]).round(4).tolist()
        [1.0, 2.0, 0.3679]
        >>> importance_weights([0.0, 1.0, -1.0], [0, 3], level="sequence").tolist()
        [1.0, 1.0, 1.0]
    """
    numbers = columns.numbers(log_ratios, "log_ratios")
    return _core.weight.importance(
        numbers,
        columns.integers(offsets, "offsets"),
        level=level,
        at_least=at_least,
        at_most=at_most,
        kind=kind,
        steps=None if steps is None else columns.integers(steps, "steps"),
        mask=columns.mask(mask, "mask", length=len(numbers)),
    )


def trust_region(
    log_ratios: object,
    offsets: object,
    *,
    at_most: float,
    at_least: float | None = None,
    kind: Literal["k1", "k2", "k3"] = "k3",
    aggregate: Literal["token", "sum", "mean", "max"] = "token",
    mask: object | None = None,
) -> NDArray[np.bool_]:
    """Select tokens within a trust region, by their own divergence (`token`) or the sum, mean or max of their row.

    With d = log pi - log mu: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d. These are verl's `rollout_rs` modes,
    `token_k1` to
    `seq_max_k3`; for its ratio bounds a and b of k1, give at_least=ln(a) and at_most=ln(b).

    Args:
        log_ratios: n numbers.
        offsets: as for `importance_weights`.
        at_most: the largest divergence to keep.
        at_least: the smallest divergence to keep; None: any.
        kind: see above.
        aggregate: see above.
        mask: as for `importance_weights`; other tokens are False.

    Returns:
        `bool[n]`.

    Raises:
        InvalidInputError: lengths differ, an unmasked log-ratio is not finite, or at_least is above
            at_most.

    Example:
        >>> from agentrl_core.weight.importance import trust_region
        >>> trust_region([0.0, 2.0, 0.1], [0, 2, 3], at_most=0.5, aggregate="max").tolist()
        [False, False, True]
    """
    numbers = columns.numbers(log_ratios, "log_ratios")
    return _core.weight.trust_region(
        numbers,
        columns.integers(offsets, "offsets"),
        kind=kind,
        aggregate=aggregate,
        at_least=at_least,
        at_most=at_most,
        mask=columns.mask(mask, "mask", length=len(numbers)),
    )


def importance_diagnostics(log_ratios: object, offsets: object, *, mask: object | None = None) -> Diagnostics:
    """Compute effective sample size, divergences and extreme ratios of two policies over some rows.

    Args:
        log_ratios: n numbers, log pi - log mu.
        offsets: as for `importance_weights`.
        mask: as for `importance_weights`.

    Raises:
        InvalidInputError: lengths differ, an unmasked log-ratio is not finite, or all tokens are masked.

    Example:
        >>> from agentrl_core import weight
        >>> weight.importance_diagnostics([0.0, 0.0, 0.0], [0, 1, 3]).effective_sample_size
        2.0
    """
    numbers = columns.numbers(log_ratios, "log_ratios")
    diagnostics = _core.weight.importance_diagnostics(
        numbers,
        columns.integers(offsets, "offsets"),
        mask=columns.mask(mask, "mask", length=len(numbers)),
    )
    return Diagnostics(**diagnostics)


@dataclass(frozen=True)
class _Ratio(BatchComponent):
    """Base class of components that compare two policies on tokens.

    Args:
        logprob: token column of log-probs of the trained policy.
        behaviour_logprob: token column of log-probs of the behaviour policy.
    """

    phase: ClassVar[str] = "weight"

    logprob: str = column_name("recomputed_logprob", level="token", model="policy")
    behaviour_logprob: str = column_name("behaviour_logprob", level="token")

    def _ratios(self, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return log-ratios, token offsets of draws, and the mask of trained tokens."""
        known = rows.known(self.logprob) & rows.known(self.behaviour_logprob)
        log_ratios = rows.values(self.logprob) - rows.values(self.behaviour_logprob)
        log_ratios = np.where(known, log_ratios, 0.0)
        return log_ratios, rows.batch.offsets("token")[rows.batch.offsets("step")], known


@dataclass(frozen=True)
class ImportanceWeight(_Ratio):
    """Weight tokens by the importance ratio, to correct for an older policy or the engine's numerics.

    weight *= the bounded ratio of both policies' probabilities, without gradient. With rho the ratio of a token:
    `token` rho; `step` and `sequence` its product over the trained tokens of the step or draw, `step_geometric` and
    `geometric` its geometric mean; `prefix` its product up to the token; `prefix_min` rho times the smallest rho before
    it (arXiv:2601.22718). Logs are clipped to +-20. Sources: truncated importance sampling (`at_most=2.0`), IcePop
    (`kind="mask"`), the filters of ROLL, arXiv:2512.24873 (`kind="filter"`, all levels; its steps are
    `step_geometric`), and of AReaL, arXiv:2505.24298 (`logprob="proximal_logprob", kind="filter", at_most=5.0` with a
    clip that already has the weight), VCPO arXiv:2602.17616 (`level="sequence", at_most=8.0`), CM2 arXiv:2602.12268
    (`kind="veto", at_least=1e-4, at_most=None`).

    Args:
        level: tokens that share one ratio.
        kind: a ratio out of bounds is set to the bound (`truncate`) or to 0 (`mask`). A `filter` is 0 out of bounds and
            1 within; masked tokens still count in the denominator of the loss. With `veto` a draw with a ratio out of
            bounds is masked.
        at_least: the smallest ratio; None: none.
        at_most: the largest ratio; None: none.
        mean_one: whether the weights are divided by their mean over the batch: over its trained tokens (`token`), or
            over its draws, each with the mean of its tokens (`draw`). verl's `rollout_is_batch_normalize` is `token`
            for ratios of tokens and `draw` for ratios of sequences.

    Raises:
        RecipeError: an option is out of range, or a column has no known value.

    Example:
        >>> from agentrl_core.weight import ImportanceWeight
        >>> ImportanceWeight(level="sequence", at_most=8.0).needs
        (token('recomputed_logprob'), token('behaviour_logprob'))
    """

    level: Literal["token", "step", "step_geometric", "sequence", "geometric", "prefix", "prefix_min"] = "token"
    kind: Literal["truncate", "mask", "filter", "veto"] = "truncate"
    at_least: float | None = option(None, above=0.0)
    at_most: float | None = option(2.0, above=0.0)
    mean_one: Literal["none", "token", "draw"] = "none"

    def check_options(self) -> None:
        """Require ordered bounds, and allow `mean_one` only for weights."""
        ordered = self.at_least is None or self.at_most is None or self.at_least <= self.at_most
        self.require(ordered, "at_most", f"give a number of at least at_least={self.at_least}, or None")
        bounded = self.kind == "truncate" or self.at_least is not None or self.at_most is not None
        self.require(bounded, "kind", "give at_least or at_most")
        weighs = self.mean_one == "none" or self.kind in ("truncate", "mask")
        self.require(weighs, "mean_one", 'choose kind="truncate" or "mask", or mean_one="none"')

    def own_makes(self) -> tuple[Column, ...]:
        """Output column: `keep` for a veto, otherwise `weight`."""
        return (token("keep" if self.kind == "veto" else "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with a new `weight` or `keep` on tokens."""
        rows = Rows(batch, "token")
        log_ratios, offsets, known = self._ratios(rows)
        of_steps = self.level.startswith("step")
        weights = _core.weight.importance(
            log_ratios,
            offsets,
            level=self.level,
            at_least=self.at_least,
            at_most=self.at_most,
            kind=self.kind,
            steps=batch.offsets("token") if of_steps else None,
            mask=known,
        )
        if self.kind == "veto":
            return rows.keep((weights > 0.0) | ~known)
        if self.mean_one != "none":
            votes = None
            if self.mean_one == "draw":
                counts = np.bincount(rows.draws[known], minlength=batch.num_draws)
                votes = 1.0 / np.maximum(counts, 1)[rows.draws]
            means = group.statistics(weights, rows.keys("batch"), weights=votes, valid=known).mean
            weights = weights / means if len(means) and means[0] > 0.0 else weights
        return rows.scale(np.where(known, weights, 1.0))


@dataclass(frozen=True)
class TrustRegion(_Ratio):
    """Keep tokens (or whole draws) on which two policies are close, and mask the others.

    With r the ratio, a token's divergence is k1 = -ln r (signed), k2 = (ln r)^2 / 2 or k3 = r - 1 - ln r. Draws use its
    sum, mean or largest value over their trained tokens. Sources: rejection in verl 0.9's rollout correction, and the
    divergence filter of AReaL, arXiv:2505.24298 (`logprob="proximal_logprob", denominator="all"`).

    Args:
        kind: `k1`, `k2` or `k3`.
        aggregate: each `token` by itself, or all tokens of a draw by the `sum`, `mean` or `max`.
        at_least: the smallest divergence to keep; None: any.
        at_most: the largest divergence to keep.
        denominator: `kept`: masked tokens do not count in the denominator of the loss, as in verl; `all`: they have
            weight 0 and count, as in AReaL.

    Raises:
        RecipeError: `at_least` is above `at_most`, or a column has no known value.

    Example:
        >>> from agentrl_core.weight.importance import TrustRegion
        >>> TrustRegion(aggregate="max", at_most=0.5).makes
        (token('keep'),)
    """

    kind: Literal["k1", "k2", "k3"] = "k3"
    aggregate: Literal["token", "sum", "mean", "max"] = "token"
    at_least: float | None = None
    at_most: float = 0.1
    denominator: Literal["kept", "all"] = "kept"

    def check_options(self) -> None:
        """Require ordered bounds."""
        ordered = self.at_least is None or self.at_least <= self.at_most
        self.require(ordered, "at_least", f"give a number of at most at_most={self.at_most}, or None")

    def own_makes(self) -> tuple[Column, ...]:
        """Output column: `keep`, or `weight` with 0 for masked tokens."""
        return (token("keep" if self.denominator == "kept" else "weight"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with another `keep` or `weight` on tokens."""
        rows = Rows(batch, "token")
        log_ratios, offsets, known = self._ratios(rows)
        near = _core.weight.trust_region(
            log_ratios,
            offsets,
            kind=self.kind,
            aggregate=self.aggregate,
            at_least=self.at_least,
            at_most=self.at_most,
            mask=known,
        )
        chosen = near | ~known
        return rows.keep(chosen) if self.denominator == "kept" else rows.scale(chosen.astype(np.float64))
