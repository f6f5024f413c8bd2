"""Off-policy correction: ratios of trained to behaviour policy as weights and filters, with diagnostics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import BatchComponent, Column, Rows, column_name, option, token
from agentrl_core.data.batch import Batch
from agentrl_core.operators import group


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
        """Return log-ratios (0: unknown), token offsets of draws, and the mask of valid tokens with both log-probs."""
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
        """Require ordered bounds, a bound unless `kind` is `truncate`, and `mean_one` only for weights."""
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
