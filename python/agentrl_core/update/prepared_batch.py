"""The columns, masks and ids of a batch that the optimizer steps of one loss share: they are read once."""

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
from agentrl_core.loss.inputs import SOURCE
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
"""Stream with the index of the stored token; it prevents merging pairs of different stored tokens."""
IDS = ("step", "sequence", "pair", "group", "stratum")
"""Streams with the number of each row's segment: its step, sequence, pair, group or stratum."""
OF_BATCH = " of the batch"
"""Suffix of the name of a segment stream whose numbers are those of the batch instead of those of the pack."""


@dataclass(frozen=True, eq=False)
class PreparedElsewhere:
    """The loss and the model's name, for ranks without the prepared batch, which is on the first rank.

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
        valid: `bool[draws]`, draws that are trained.
        dealt: `int64[draws]`, for each draw, the unit that minibatches keep together: a draw, a pair or a group.
        units: `int64[draws]`, for each draw, the unit that stays in one pack; None if any sequence may be in any pack.
        keep: `bool[tokens]`, tokens in the loss; None: all.
        same: streams that are columns, `float32[tokens]` each: branches that share a token have one value.
        wide: streams with several values for each stored token, `[node tokens, k]`: a pair reads the values of its
            stored token, so pairs of different stored tokens are not merged.
        summed: streams that are sums of loss weights times columns over the branches that share a token.
        credit: the columns in the products of `summed`, `float32[tokens]` each.
        ids: streams of segment numbers, an integer for each token.
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
        # With a custom advantage, a batch may have no score.
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
        read_names = {loss.unit, *loss.streams}
        if "pair" in read_names:
            segments["pair"] = pairs_of(batch, valid, preferred=loss.needs_preference)
            valid &= segments["pair"] >= 0

        streams = tuple(dict.fromkeys(("inverse_temperature", "weight_kl", *loss.streams)))
        summed = tuple(name for name in streams if name in PRODUCTS)
        names = {name: name for name in streams if name not in (*summed, *IDS, *SHARES)}
        old = old_logprobs(batch) if "old_logprob" in names else None
        if old is not None:
            names["old_logprob"] = old.column
        if len(np.unique(np.asarray(batch.column("source", "draw"))[valid])) > 1:
            names[SOURCE] = SOURCE  # metrics are reported for each source
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
            # The bits of a stored token's index: the column differs if and only if the stored tokens differ.
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
            dealt=segments[next((name for name in ("group", "pair") if name in read_names), "sequence")],
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
        """Return whether any of these draws has tokens that were sampled after images."""
        if self.images is None:
            return False
        ends = self.batch.offsets("token")[self.batch.offsets("step")]
        before = np.append(0, np.cumsum(self.images))[ends]
        return bool((before[draws + 1] > before[draws]).any())

    def weights(self, draws: NDArray[np.int64]) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float32]]]:
        """Return the loss weights of tokens for a step on some draws, `float64[tokens]`, denominators included.

        If the terms of a loss have different denominators, these are the sums of the weights of all terms; the share of
        each term in the sum is returned as well.

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
            divisor = np.where(weights > 0, weights, 1.0)
            shares = {name: (part / divisor).astype(np.float32) for name, part in zip(SHARES, each, strict=True)}
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
        """Return the token weights of a loss in one step; only the valid draws of the step count in denominators."""
        weights = self.batch.token_weights(
            draws,
            denominator=loss.denominator,
            constant=loss.denominator_constant,
            shared=self.shared,
            valid=valid,
            keep=self.keep,
        )
        if loss.normaliser is not None:
            normaliser = np.where(weights > 0, self.same[loss.normaliser], 0.0)
            total = float(weights @ normaliser)
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
    nonempty = np.flatnonzero(counts)
    if len(nonempty):
        idle[nonempty] = ~np.logical_or.reduceat(np.logical_or.reduce(advantages), ends[nonempty])
    spread: NDArray[np.bool_] = np.repeat(idle, counts)
    return spread


def _units(loss: Loss, segments: dict[str, NDArray[np.int64]]) -> NDArray[np.int64] | None:
    """Return, for each draw, the unit that must stay in one pack; None if there is no restriction."""
    if loss.unit in ("token", "step"):  # a step lies in one sequence
        return None
    if loss.unit == "update":
        return np.zeros_like(segments["sequence"])
    return segments["sequence" if loss.unit == "trajectory" else loss.unit]


def _ids(batch: Batch, streams: Collection[str], segments: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[Any]]:
    """Return the segment number of each token, for those streams that are segment numbers."""
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
