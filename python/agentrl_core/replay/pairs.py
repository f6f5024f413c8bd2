"""Pairs of a better and a worse draw of one group, for preference losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import Column, column_name, option
from agentrl_core.component.state import IterationRecord, State
from agentrl_core.data.replayed_draws import Draws, OldLogprob
from agentrl_core.operators import columns, keys
from agentrl_core.replay.base import Replay

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_core.data.batch import Batch

Matching = Literal["extremes", "all", "disjoint", "nearest"]


def pairs(
    scores: object,
    group_ids: object | None = None,
    *,
    matching: Matching = "extremes",
    margin: float = 0.0,
    at_most: int | None = None,
    lengths: object | None = None,
    valid: object | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pair better with worse rows of the same group.

    Args:
        scores: n numbers.
        group_ids: n group ids; None: one group.
        matching: `extremes`: the best with the worst; `all`: every row with every one below it; `disjoint`: the best
            with the worst, the second best with the second worst, and so on, no row twice; `nearest`: every row with
            the one below it whose length is nearest.
        margin: smallest lead of the better row; 0: any lead above 0.
        at_most: largest number of pairs of a group, those of the best row first. None: all.
        lengths: n numbers, which `nearest` needs.
        valid: n booleans; rows that are False are in no pair. None: all rows are valid.

    Returns:
        Indices of the better and of the worse row of each pair, `int64[pairs]` each.

    Raises:
        InvalidInputError: lengths differ, a valid score is not finite, or `nearest` has no lengths.

    Example:
        >>> from agentrl_core import replay
        >>> [rows.tolist() for rows in replay.pairs([0.0, 1.0, 0.5], matching="all")]
        [[1, 1, 2], [0, 2, 0]]
    """
    numbers, groups, mask = columns.scored(scores, group_ids, valid)
    return _core.replay.pairs(
        numbers.astype(np.float64, copy=False),
        groups,
        matching=matching,
        margin=margin,
        at_most=at_most,
        lengths=None if lengths is None else columns.doubles(lengths, "lengths", length=len(numbers), first="scores"),
        valid=mask,
    )


@dataclass(frozen=True)
class Pairs(Replay):
    """Pair draws of the batch: each pair is a new group of two draws, numbered in column `pair`.

    A trajectory in two pairs has two draws. The fresh draws stay in the batch without a pair, and losses on pairs
    ignore them. Best and worst of a group: `extremes` (arXiv:2305.18290 of 2 draws a prompt, arXiv:2404.19733 of more).

    Args:
        column: the draw column to compare.
        matching: see `pairs`.
        margin: see `pairs`.
        at_most: see `pairs`.
        length: the draw column that `nearest` compares; empty: the number of trained tokens.
        old_logprob: denominator of the ratio.

    Example:
        >>> from agentrl_core import replay
        >>> replay.Pairs(matching="disjoint").makes
        (draw('pair'),)
    """

    column: str = column_name("score", level="draw")
    matching: Matching = "extremes"
    margin: float = option(0.0, at_least=0)
    at_most: int | None = option(None, at_least=1)
    length: str = column_name("", level="draw", optional=True)
    old_logprob: OldLogprob = "behaviour"

    def own_makes(self) -> Iterable[Column]:
        """Column with the number of each draw's pair."""
        return (Column("draw", "pair"),)

    def initial_state(self) -> State:
        """Return an empty state, since nothing is remembered."""
        return {}

    def next(self, state: State, closed: IterationRecord) -> State:  # noqa: ARG002 - nothing is remembered
        """Return the empty state, since nothing is remembered."""
        return {}

    def mix(self, state: State, batch: Batch, key: int) -> Draws | None:  # noqa: ARG002 - scores alone decide
        """Return the draws of all pairs; None if there is no pair."""
        scores = np.asarray(batch.column(self.column, "draw"), np.float64)
        lengths = None
        if self.matching == "nearest":
            lengths = batch.column(self.length, "draw") if self.length else _trained_tokens(batch)
        better, worse = pairs(
            scores,
            keys.dense(np.asarray(batch.column("group_id", "draw"))),
            matching=self.matching,
            margin=self.margin,
            at_most=self.at_most,
            lengths=lengths,
            valid=np.isfinite(scores),
        )
        if not len(better):
            return None
        rows = np.stack([better, worse], axis=1).reshape(-1)
        number = np.repeat(np.arange(len(better), dtype=np.int64), 2)
        partner = np.stack([worse, better], axis=1).reshape(-1)
        words = np.tile(["better", "worse"], len(better))
        reason = [
            f"pair {pair}: {word} than draw {other} by {self.column}"
            for pair, word, other in zip(number.tolist(), words.tolist(), partner.tolist(), strict=True)
        ]
        return Draws.of(
            -1 - rows,
            votes_in=Draws.NEW_GROUP,
            new_group=number,
            source="fresh",
            old_logprob=self.old_logprob,
            columns={"pair": number},
            reason=reason,
        )


def _trained_tokens(batch: Batch) -> NDArray[np.float64]:
    counts = np.concatenate([[0], np.cumsum(np.asarray(batch.column("trainable", "token")) != 0)])
    ends = batch.offsets("token")[batch.offsets("step")]
    return np.diff(counts[ends]).astype(np.float64)
