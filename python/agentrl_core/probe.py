"""Probes: what a model would say in the place of an action, asked at every step of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core import _columns
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.batch import Batch

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
        >>> from agentrl_core.probe import Probe
        >>> closing, answers = [7, 8], {"task-a": [1, 2], "task-b": [3]}
        >>> tasks = ["task-a", "task-a", "task-b"]  # of a batch: batch.texts("task_id", "draw")
        >>> probe = Probe([closing + answers[task] for task in tasks], start=len(closing))
        >>> [row.tolist() for row in probe.rows]
        [[7, 8, 1, 2], [7, 8, 1, 2], [7, 8, 3]]
    """

    def __init__(
        self, tokens: Iterable[ArrayLike], *, start: ArrayLike = 0, reduce: Literal["mean", "sum"] = "mean"
    ) -> None:
        self.rows = [_columns.integers(row, f"tokens[{place}]") for place, row in enumerate(tokens)]
        self.starts = np.broadcast_to(_columns.integers(np.atleast_1d(start), "start"), len(self.rows))
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


@dataclass
class _Tree:
    """Rows of a pack in the tree layout that is being made; `asked` is the question of each prediction pair."""

    input_ids: list[_Indices] = field(default_factory=list)
    position_ids: list[_Indices] = field(default_factory=list)
    subtree_end: list[_Indices] = field(default_factory=list)
    source_row: list[_Indices] = field(default_factory=list)
    target: list[_Indices] = field(default_factory=list)
    asked: list[_Indices] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])

    def add(self, context: _Indices, forks: _Indices, probe: _Indices, start: int, questions: _Indices) -> None:
        """A context and, off it behind `forks` tokens, the probe; nothing reads its last token, which has no row."""
        begin, inside, branch = self.starts[-1], probe[:-1], len(probe) - 1
        trunk = np.arange(len(context))
        trunk_row = trunk + branch * np.searchsorted(forks, trunk, side="right")
        depth = np.arange(branch)
        # A branch lies between the trunk tokens that it forks off from and goes on before.
        branch_begin = forks + branch * np.arange(len(forks))
        branch_row = branch_begin[:, None] + depth
        size = len(context) + branch * len(forks)
        ids, positions, ends = (np.empty(size, np.int64) for _ in range(3))
        ids[trunk_row], positions[trunk_row], ends[trunk_row] = context, trunk, size
        ids[branch_row], positions[branch_row] = inside, forks[:, None] + depth
        ends[branch_row] = branch_begin[:, None] + branch
        before = np.column_stack([trunk_row[forks - 1], branch_row])
        for column, values in (
            (self.input_ids, ids),
            (self.position_ids, positions),
            (self.subtree_end, begin + ends),
            (self.source_row, begin + before[:, start:].ravel()),
            (self.target, np.tile(probe[start:], len(forks))),
            (self.asked, np.repeat(questions, len(probe) - start)),
        ):
            column.append(values)
        self.starts.append(begin + size)


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
        self._tokens, self._offsets, self._steps_of, self._begins = batch._core.contexts()  # noqa: SLF001 - its columns

    def __len__(self) -> int:
        return int(self._steps[-1]) + len(self._probe.rows)

    def packs(self, max_tokens: int) -> Iterator[_Tree]:
        """Packs of at most `max_tokens` tokens, in the order of the draws, in which each context lies once.

        Raises:
            InvalidInputError: one context with its probes is longer.
        """
        tree, steps = _Tree(), int(self._steps[-1])
        draw = 0
        for context in range(len(self._offsets) - 1):
            first, last = int(self._steps_of[context]), int(self._steps_of[context + 1])
            forks, questions = self._begins[first:last], np.arange(first, last)
            tokens = self._tokens[self._offsets[context] : self._offsets[context + 1]].astype(np.int64)
            owner = draw
            if last == self._steps[draw + 1]:  # the draw's last context
                forks, questions = np.append(forks, len(tokens)), np.append(questions, steps + draw)
                draw += 1
            known = forks > 0  # nothing predicts the first token of a context
            forks, questions = forks[known], questions[known]
            if not len(forks):
                continue
            probe = self._probe.rows[owner]
            size = int(forks[-1]) + len(forks) * (len(probe) - 1)
            if size > max_tokens:
                raise InvalidInputError(
                    f"max_tokens is {max_tokens}, but a context of draw {owner} with its {len(forks)} probes has "
                    f"{size} tokens; raise max_tokens"
                )
            if tree.starts[-1] + size > max_tokens:
                yield tree
                tree = _Tree()
            tree.add(tokens[: forks[-1]], forks, probe, int(self._probe.starts[owner]), questions)
        if tree.starts[-1]:
            yield tree

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
