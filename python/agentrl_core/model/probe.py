"""Probes: what a model would say in the place of an action, asked at every step of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import columns
from agentrl_core.operators.packing import TreeRows, tree_layout

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_Indices = NDArray[np.int64]


class Probe:
    """Tokens that a model is asked about: appended to the context before each action, and behind the last one.

    `Batch.annotate(column, model, probe=...)` makes of their log-probs (or of another answer that the column is named
    after) the step column `column`, after each step, and the draw column `<column>_before`, before the first. After a
    step is where the next one would act, what came back from the environment included; after the last step it is the
    end of the trajectory. In IGPO (arXiv:2510.14967) the tokens are a closing text and the right answer.

    Args:
        tokens: a row of token ids for each draw: what leads to the answer, then the answer. What would come behind it
            changes nothing, so leave it out.
        start: how many tokens of a row lead to the answer; those behind them are scored. One number, or one for each
            draw.
        reduce: the `mean` over the scored tokens, or their `sum`.

    Raises:
        InvalidInputError: a row has no scored token, or a token id is negative.

    Example:
        >>> from agentrl_core.model.probe import Probe
        >>> closing, answers = [7, 8], {"task-a": [1, 2], "task-b": [3]}
        >>> tasks = ["task-a", "task-a", "task-b"]  # of a batch: batch.texts("task_id", "draw")
        >>> probe = Probe([closing + answers[task] for task in tasks], start=len(closing))
        >>> [row.tolist() for row in probe.rows]
        [[7, 8, 1, 2], [7, 8, 1, 2], [7, 8, 3]]
    """

    def __init__(
        self, tokens: Iterable[ArrayLike], *, start: ArrayLike = 0, reduce: Literal["mean", "sum"] = "mean"
    ) -> None:
        self.rows = [columns.integers(row, f"tokens[{place}]") for place, row in enumerate(tokens)]
        self.starts = np.broadcast_to(columns.integers(np.atleast_1d(start), "start"), len(self.rows))
        self.reduce = reduce
        for place, (row, begin) in enumerate(zip(self.rows, self.starts.tolist(), strict=True)):
            if not 0 <= begin < len(row):
                raise InvalidInputError(
                    f"start is {begin} for tokens[{place}], which has {len(row)} tokens; at least one must be scored"
                )
            if row.min() < 0:
                raise InvalidInputError(f"tokens[{place}] holds {row.min()}; give token ids from 0")
        if reduce not in ("mean", "sum"):
            raise InvalidInputError(f"reduce={reduce!r}; use mean or sum")


class Questions:
    """The places of a batch where a probe is asked: before the action of each step, and at the end of each draw.

    Question `s` below the number of steps is asked before step `s`, the one behind that number by `d` at the end of
    draw `d`.
    """

    def __init__(self, batch: Batch, probe: Probe) -> None:
        if len(probe.rows) != batch.num_draws:
            raise InvalidInputError(
                f"the probe has {len(probe.rows)} rows of tokens, but the batch has {batch.num_draws} draws; give one "
                "for each draw"
            )
        self._probe = probe
        self._steps = batch.offsets("step")
        self._tokens, (self._offsets, self._draws, self._steps_of, self._begins) = batch._core.contexts()  # noqa: SLF001

    def __len__(self) -> int:
        return int(self._steps[-1]) + len(self._probe.rows)

    def packs(self, max_tokens: int) -> Iterator[tuple[TreeRows, _Indices]]:
        """Packs of at most `max_tokens` tokens, in the order of the draws, and the question behind each given token.

        Contexts that begin alike lie once in a pack, whichever draws they are of.

        Raises:
            InvalidInputError: one context with its probes is longer.
        """
        rows: list[tuple[int, int, int, int]] = []  # begin and end of the context, its draw, the question
        filled, steps = 0, int(self._steps[-1])
        for context, draw in enumerate(self._draws.tolist()):
            begin, end = self._offsets[context : context + 2].tolist()
            first, last = self._steps_of[context : context + 2].tolist()
            places, questions = self._begins[first:last], np.arange(first, last)
            if draw not in self._draws[context + 1 : context + 2]:  # the draw's last context
                places, questions = np.append(places, end - begin), np.append(questions, steps + draw)
            known = places > 0  # nothing predicts the first token of a context
            if not known.any():
                continue
            # As if nothing were shared with other contexts; the probe's last token is never read.
            size = int(places[-1]) + int(known.sum()) * (len(self._probe.rows[draw]) - 1)
            if size > max_tokens:
                raise InvalidInputError(
                    f"max_tokens is {max_tokens}, but a context of draw {draw} with its {known.sum()} probes has "
                    f"{size} tokens; raise max_tokens"
                )
            if filled + size > max_tokens:
                yield self._laid_out(rows)
                rows, filled = [], 0
            asked = zip((begin + places[known]).tolist(), questions[known].tolist(), strict=True)
            rows += [(begin, behind, draw, question) for behind, question in asked]
            filled += size
        if rows:
            yield self._laid_out(rows)

    def _laid_out(self, rows: list[tuple[int, int, int, int]]) -> tuple[TreeRows, _Indices]:
        parts: list[NDArray[Any]] = []
        scored: list[NDArray[np.bool_]] = []
        lengths: list[int] = []
        for begin, end, draw, _ in rows:
            probe, start = self._probe.rows[draw], int(self._probe.starts[draw])
            parts += [self._tokens[begin:end], probe]
            scored += [np.zeros(end - begin + start, np.bool_), np.ones(len(probe) - start, np.bool_)]
            lengths.append(end - begin + len(probe))
        tree = tree_layout(np.concatenate(parts), np.cumsum([0, *lengths]), trained=np.concatenate(scored))
        return tree, np.repeat([question for _, _, _, question in rows], lengths)

    def columns(self, asked: _Indices, values: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What was answered after each step and before the first of each draw, of the value of each scored token."""
        total = np.bincount(asked, values, minlength=len(self))
        count = np.bincount(asked, minlength=len(self))
        scale = np.maximum(count, 1) if self._probe.reduce == "mean" else 1
        answers = np.where(count > 0, total / scale, np.nan).astype(np.float32)
        steps = int(self._steps[-1])
        first, behind = self._steps[:-1], self._steps[1:]
        has_steps = behind > first
        after = np.append(answers[1:steps], np.float32(np.nan))[:steps]
        after[behind[has_steps] - 1] = answers[steps:][has_steps]
        before = np.full(len(first), np.nan, np.float32)
        before[has_steps] = answers[first[has_steps]]
        return after, before
