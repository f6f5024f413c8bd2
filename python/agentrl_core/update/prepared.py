"""Data that all optimizer steps of one loss share, read from the batch once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component.rows import Rows, first_of_chain
from agentrl_core.data.sampling_record import tokens_with_images
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss.base import SHARES
from agentrl_core.loss.combine import Sum
from agentrl_core.loss.tokens import SOURCE
from agentrl_core.update.old_logprobs import old_logprobs
from agentrl_core.update.pairs import pairs_of

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.loss import Loss, Train

Shared = Literal["each", "split", "owner"]

_ADVANTAGE = ("advantage", "weight", "advantage_positive", "advantage_negative")
PRODUCTS = {  # streams that are sums of loss weights times columns, and the columns in those products
    "advantage_positive": _ADVANTAGE,
    "advantage_negative": _ADVANTAGE,
    "weight_kl": ("kl_weight",),
    "weight_entropy": (),
}
STORED = "stored_token"
"""A stream that keeps pairs of different stored tokens apart, where others are read from the stored token."""
IDS = ("step", "sequence", "pair", "group", "stratum")
"""Streams that number the rows' segments."""
OF_BATCH = " of the batch"
"""Behind the name of such a stream: the same segments, numbered as in the batch and not as in the pack."""


@dataclass(frozen=True, eq=False)
class PreparedElsewhere:
    """The part of a batch prepared on the first rank that other ranks know.

    Attributes:
        loss: the loss to minimise.
        model: name of the model that is stepped.
    """

    loss: Loss
    model: str


@dataclass(frozen=True, eq=False)
class PreparedBatch:
    """A batch prepared for the optimizer steps of one loss: all data that do not change between steps.

    Attributes:
        batch: the batch.
        loss: the loss to minimise.
        model: name of the model that is stepped.
        shared: how branches that share a sampled token count it; see `Batch.token_weights`.
        valid: `bool[draws]`, trained draws that count.
        dealt: `int64[draws]`, units that minibatches keep together: a draw, a pair or a group.
        units: `int64[draws]`, units that stay in one pack; None if any sequence may be in any pack.
        keep: `bool[tokens]`, tokens in the loss; None: all.
        same: streams that are columns, `float32[tokens]` each: branches that share a token have one value.
        wide: streams with several values for each stored token, `[node tokens, k]`: they are read where a pair is
            stored, and pairs of other stored tokens are not joined with it.
        summed: streams that are sums of loss weights times columns over the branches that share a token.
        credit: the columns in those products, `float32[tokens]` each.
        ids: streams that number segments, an integer for each token.
        unknown: by column, the tokens without a finite value, and their values.
        idle: `bool[tokens]`, tokens of draws without advantage that cannot change the loss; None: they may change it.
        images: `bool[tokens]`, tokens sampled after images; None: no images.
    """

    batch: Batch
    loss: Loss
    model: str
    shared: Shared
    valid: NDArray[np.bool_]
    dealt: NDArray[np.int64]
    units: NDArray[np.int64] | None
    keep: NDArray[np.bool_] | None
    same: dict[str, NDArray[np.float32]]
    wide: dict[str, NDArray[Any]]
    summed: tuple[str, ...]
    credit: dict[str, NDArray[np.float32]]
    ids: dict[str, NDArray[Any]]
    unknown: dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]]
    idle: NDArray[np.bool_] | None = None
    images: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls, batch: Batch, training: Train, shared: Shared, *, metrics_of_all: bool = False, unfolded: bool = False
    ) -> PreparedBatch:
        """Read the data of a loss from a batch.

        Args:
            batch: the batch.
            training: the loss, and the draws that it trains.
            shared: see the class.
            metrics_of_all: whether draws that cannot change the loss are also run, for their metrics.
            unfolded: whether a token that several draws train is a prediction pair for each of them.

        Raises:
            InvalidInputError: the loss needs pairs, and a pair has more than two draws.
        """
        loss = training.loss
        # A custom advantage may come without a score.
        scored = batch.has("score", "draw") and loss.needs_score
        valid: NDArray[np.bool_] = (
            np.isfinite(batch.column("score", "draw")) if scored else np.ones(batch.num_draws, dtype=np.bool_)
        )
        valid |= batch.column("votes", "draw") == 0  # draws that do not vote need no score
        valid &= batch.column("trained", "draw") != 0  # a baseline votes but is not in a minibatch
        if training.where is not None:
            valid &= training.where.holds(batch)
        # The segments that a draw belongs to; a sequence is a draw, even with several contexts.
        segments = {
            "sequence": np.arange(batch.num_draws, dtype=np.int64),
            "group": batch.keys("group_id", "draw").astype(np.int64),
        }
        whole = {loss.unit, *loss.streams}
        if "pair" in whole:
            segments["pair"] = pairs_of(batch, valid, preferred=loss.needs_preference)
            valid &= segments["pair"] >= 0

        streams = tuple(dict.fromkeys(("inverse_temperature", "weight_kl", *loss.streams)))
        summed = tuple(name for name in streams if name in PRODUCTS)
        names = {name: name for name in streams if name not in (*summed, *IDS, *SHARES)}
        old = old_logprobs(batch) if "old_logprob" in names else None
        if old is not None:
            names["old_logprob"] = old.column
        if len(np.unique(np.asarray(batch.column("source", "draw"))[valid])) > 1:
            names[SOURCE] = SOURCE  # metrics are reported for each
        wide = {name: batch.column(name, "node_token") for name in names if _is_wide(batch, name)}
        names = {name: column for name, column in names.items() if name not in wide}
        stored = np.asarray(batch.column("node_token", "token")) if wide else None
        factors = dict.fromkeys(column for name in summed for column in PRODUCTS[name])
        keeps = ["keep"] if batch.has("keep", "token") and training.is_filtered else []
        columns = {
            column: np.asarray(batch.column(column, "token"), np.float32)
            for column in dict.fromkeys((*names.values(), *factors, *keeps))
            if column in names.values() or batch.has(column, "token")
        }
        keep = columns["keep"] != 0 if "keep" in columns else None
        if loss.of_steps:
            steps = Rows(batch, "token")
            kept = steps.flags("trainable") if keep is None else steps.flags("trainable") & keep
            keep = first_of_chain(steps.within("step"), kept)
        unknown = {name: np.flatnonzero(~np.isfinite(values)) for name, values in columns.items()}
        same = {stream: columns[column] for stream, column in names.items()}
        if old is not None and old.values is not None and old.none is not None:
            same["old_logprob"] = columns[old.column] = old.values
            unknown[old.column] = np.flatnonzero(~np.isfinite(old.values) & ~old.none)
        if stored is not None:
            # The bits of a stored token's index: a column that differs if and only if the stored tokens do.
            same[STORED] = stored.astype(np.int32).view(np.float32)
            for name, rows in wide.items():
                unread = (
                    np.isnan(rows[stored]).any(axis=1) if rows.dtype.kind == "f" else (rows[stored] < 0).all(axis=1)
                )
                unknown[name] = np.flatnonzero(unread)
                columns[name] = np.full(len(stored), np.nan, np.float32)
        credit = {column: columns[column] for column in factors if column in columns}
        return cls(
            batch=batch,
            loss=loss,
            model=training.model,
            shared=shared,
            valid=valid,
            dealt=segments[next((name for name in ("group", "pair") if name in whole), "sequence")],
            units=_units(loss, segments),
            keep=keep,
            same=same,
            wide=wide,
            summed=summed,
            credit=credit,
            ids=_ids(batch, (*loss.streams, *(["sequence"] if unfolded else [])), segments),
            unknown={name: (tokens, columns[name][tokens]) for name, tokens in unknown.items() if len(tokens)},
            idle=None if metrics_of_all or not loss.by_advantage else _idle(batch, credit),
            images=tokens_with_images(batch),
        )

    @property
    def foldable(self) -> bool:
        """Return whether a token that several branches train may be one prediction pair."""
        return self.loss.foldable and not self.ids

    def shows_images(self, draws: NDArray[np.int64]) -> bool:
        """Return whether some draws have tokens that were sampled after images."""
        if self.images is None:
            return False
        ends = self.batch.offsets("token")[self.batch.offsets("step")]
        before = np.append(0, np.cumsum(self.images))[ends]
        return bool((before[draws + 1] > before[draws]).any())

    def weights(self, draws: NDArray[np.int64]) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float32]]]:
        """Return loss weights of tokens for a step on some draws, with its denominators: `float64[tokens]`.

        Of a sum whose terms have denominators of their own they are the sum of the weights in both terms, and with them
        come the share of each term in it.

        Raises:
            InvalidInputError: a column is not finite at a trained token.
        """
        shares = dict[str, NDArray[np.float32]]()
        if isinstance(self.loss, Sum) and self.loss.own_rows:
            each = [
                self._normalised(loss, draws, self.valid if where is None else self.valid & where.holds(self.batch))
                for loss, where in self.loss.terms
            ]
            weights: NDArray[np.float64] = each[0] + each[1]
            whole = np.where(weights > 0, weights, 1.0)
            shares = {name: (of / whole).astype(np.float32) for name, of in zip(SHARES, each, strict=True)}
        else:
            weights = self._normalised(self.loss, draws, self.valid)
        for name, (tokens, values) in self.unknown.items():
            trained = np.flatnonzero(weights[tokens] > 0)
            if len(trained):
                raise InvalidInputError(
                    f"column {name!r} is {values[trained[0]]} at trained token {tokens[trained[0]]} ({len(trained)} "
                    f"such tokens); mark these tokens as not trainable, or set a value (arl.annotate for log-probs)"
                )
        return weights, shares

    def _normalised(self, loss: Loss, draws: NDArray[np.int64], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the weights of tokens in a loss over the valid draws among some."""
        weights = self.batch.token_weights(
            draws,
            denominator=loss.denominator,
            constant=loss.denominator_constant,
            shared=self.shared,
            valid=valid,
            keep=self.keep,
        )
        if loss.normaliser is not None:
            of = np.where(weights > 0, self.same[loss.normaliser], 0.0)
            total = float(weights @ of)
            weights = weights * (weights.sum() / total) if total > 0 else weights
        if loss.equal_groups:
            _, groups = np.unique(self.ids["group"], return_inverse=True)
            totals = np.bincount(groups, weights)
            mean = totals.sum() / max(np.count_nonzero(totals), 1)
            weights = weights * np.divide(mean, totals, out=np.zeros_like(totals), where=totals > 0)[groups]
        return weights


def _is_wide(batch: Batch, name: str) -> bool:
    """Return whether a column has several values for each token."""
    return batch.has(name, "node_token") and batch.column(name, "node_token").ndim == 2


def _idle(batch: Batch, credit: dict[str, NDArray[np.float32]]) -> NDArray[np.bool_]:
    """Mark the tokens of draws without a nonzero advantage."""
    advantages = [values != 0 for column, values in credit.items() if column.startswith("advantage")]
    ends = batch.offsets("token")[batch.offsets("step")]
    counts, idle = np.diff(ends), np.ones(len(ends) - 1, np.bool_)
    # For a draw without tokens, `reduceat` would use those of the next draw.
    said = np.flatnonzero(counts)
    if len(said):
        idle[said] = ~np.logical_or.reduceat(np.logical_or.reduce(advantages), ends[said])
    spread: NDArray[np.bool_] = np.repeat(idle, counts)
    return spread


def _units(loss: Loss, segments: dict[str, NDArray[np.int64]]) -> NDArray[np.int64] | None:
    """Return the unit of each draw that must stay in one pack."""
    if loss.unit in ("token", "step"):  # a step lies in one sequence
        return None
    if loss.unit == "update":
        return np.zeros_like(segments["sequence"])
    return segments["sequence" if loss.unit == "trajectory" else loss.unit]


def _ids(batch: Batch, streams: Collection[str], segments: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[Any]]:
    """Return for each token the segments among some streams."""
    names = [name for name in IDS if name in streams]
    if not names:
        return {}
    of_steps = batch.offsets("token")
    steps = np.repeat(np.arange(len(of_steps) - 1, dtype=np.int64), np.diff(of_steps))
    draws = np.repeat(segments["sequence"], np.diff(batch.offsets("step")))[steps]
    ids: dict[str, NDArray[Any]] = {"step": steps, **{name: numbers[draws] for name, numbers in segments.items()}}
    if "stratum" in names:
        ids["stratum"] = np.unique(batch.column("stratum", "token"), return_inverse=True)[1]
    return {name: ids[name] for name in names}
