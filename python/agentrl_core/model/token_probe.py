"""Probes: tokens whose log-probs are computed in place of the action, at every step of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.model.context_images import ContextImages, consecutive
from agentrl_core.model.pack import Pack
from agentrl_core.operators import columns
from agentrl_core.operators.packing import TreeRows, tree_layout

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch

_Indices = NDArray[np.int64]


class Probe:
    """Tokens that a model scores in the context of every step: before each action, and after the last one.

    `arl.annotate(batch, column, model, probe=...)` turns their log-probs (or another output, by the column's name) into
    the step column `column`, after each step, and the draw column `<column>_before`, before the first step.
    The position after a step includes the environment's answer: the next action would start there. After the last step
    it is the end of the trajectory. In IGPO (arXiv:2510.14967) the tokens are a closing text and the right answer.

    Args:
        tokens: a row of token ids for each draw: a lead-in, then the answer. Tokens after the answer change nothing, so
            leave them out.
        start: number of lead-in tokens of a row; the tokens after them are scored. One number, or one for each draw.
        reduce: the `mean` or the `sum` over the scored tokens.

    Raises:
        InvalidInputError: a row has no scored token, or a token id is negative.

    Example:
        >>> from agentrl_core.model.token_probe import Probe
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
            if not len(row):
                raise InvalidInputError(f"tokens[{place}] is empty; give at least one token id to score")
            if not 0 <= begin < len(row):
                raise InvalidInputError(
                    f"start is {begin} for tokens[{place}], which has {len(row)} tokens; give a number from 0 that "
                    "leaves at least one token to score"
                )
            if not 0 <= row.min() <= row.max() < 2**31:
                wrong = int(np.flatnonzero((row < 0) | (row >= 2**31))[0])
                raise InvalidInputError(
                    f"tokens[{place}][{wrong}] is {row[wrong]}; give token ids from 0 that fit 32 bits"
                )
        if reduce not in ("mean", "sum"):
            raise InvalidInputError(f"reduce={reduce!r}; use mean or sum")


class ProbePacks:
    """Packs that score a probe before the action of each step, and at the end of each draw.

    With S steps, question s < S is evaluated before step s, and question S + d at the end of draw d. An empty context
    predicts nothing, so it has no question. The model sees the images before a question.

    Args:
        batch: the batch.
        probe: the tokens to score.
        images: images of the batch's contexts; None: no images.
    """

    def __init__(self, batch: Batch, probe: Probe, images: ContextImages | None = None) -> None:
        if len(probe.rows) != batch.num_draws:
            raise InvalidInputError(
                f"the probe has {len(probe.rows)} rows of tokens, but the batch has {batch.num_draws} draws; give one "
                "for each draw"
            )
        self._probe, self._images = probe, images
        self._tails = np.concatenate([np.zeros(0, np.int64), *probe.rows]).astype(np.int32)
        self._tail_offsets = np.cumsum([0, *map(len, probe.rows)])
        self._steps = batch.offsets("step")
        contexts = batch.contexts()
        self._text = contexts.tokens
        # Before each step in its context, and at the end of each draw's last context.
        before = np.repeat(np.arange(len(contexts.draws)), np.diff(contexts.steps))
        last = np.flatnonzero(np.diff(contexts.draws, append=-1))
        context = np.concatenate([before, last])
        begins = contexts.offsets[context]
        ends = np.concatenate([begins[: len(before)] + contexts.begins, contexts.offsets[last + 1]])
        draws = contexts.draws[context]
        questions = np.concatenate([np.arange(len(before)), len(before) + contexts.draws[last]])
        known = ends > begins
        self._begins, self._ends, self._draws, self._questions = (
            column[known] for column in (begins, ends, draws, questions)
        )

    def __len__(self) -> int:
        return int(self._steps[-1]) + len(self._probe.rows)

    def packs(self, max_tokens: int) -> Iterator[tuple[Pack, TreeRows, _Indices]]:
        """Yield packs of at most `max_tokens` tokens, their layouts, and each token's question: a step or a draw's end.

        Contexts with a common beginning share it in a pack, also across draws; if contexts show images, each is a
        separate sequence.

        Raises:
            InvalidInputError: one context with its probe exceeds `max_tokens`.
        """
        sizes = self._ends - self._begins + np.diff(self._tail_offsets)[self._draws] - 1  # the last token is not read
        if len(sizes) and sizes.max() > max_tokens:
            place = int(sizes.argmax())
            raise InvalidInputError(
                f"max_tokens is {max_tokens}, but a context of draw {self._draws[place]} with its probe has "
                f"{sizes[place]} tokens; raise max_tokens"
            )
        if self._images is not None:
            rows = np.arange(len(sizes))
            yield from (self._laid_out(rows[run]) for run in consecutive(sizes, max_tokens))
            return
        packs = _core.pack.continuations(
            self._text, self._begins, self._ends, self._tails, self._tail_offsets, self._draws, max_tokens
        )
        yield from map(self._laid_out, packs)

    def _laid_out(self, rows: _Indices) -> tuple[Pack, TreeRows, _Indices]:
        begins, draws = self._begins[rows], self._draws[rows]
        lengths = self._ends[rows] - begins
        offsets = np.cumsum(np.append(0, lengths + np.diff(self._tail_offsets)[draws]))
        row = np.repeat(np.arange(len(rows)), np.diff(offsets))
        place = np.arange(offsets[-1]) - offsets[row]
        index = place - lengths[row]  # index in the probe; negative in the context
        in_probe = index >= 0
        tokens = np.empty(len(row), np.int32)
        tokens[~in_probe] = self._text[(begins[row] + place)[~in_probe]]
        tokens[in_probe] = self._tails[(self._tail_offsets[draws][row] + index)[in_probe]]
        scored = in_probe & (index >= self._probe.starts[draws][row])
        if self._images is None:
            tree = tree_layout(tokens, offsets, trained=scored)
            pack = Pack.from_tree(tree, entropy_gradient=False)
        else:
            part, further, images = self._images.between(begins, self._ends[rows])
            pack, tree = self._images.pack(tokens, offsets, offsets[part] + further, images, trained=scored)
        return pack, tree, self._questions[rows][row]

    def columns(
        self, questions: _Indices, values: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Reduce the values of scored tokens to one value after each step, and one before the first step of each draw.

        Args:
            questions: question of each scored token.
            values: the model's output for each scored token.

        Returns:
            The step column and the draw column.
        """
        total = np.bincount(questions, values, minlength=len(self))
        count = np.bincount(questions, minlength=len(self))
        scale = np.maximum(count, 1) if self._probe.reduce == "mean" else 1
        answers = np.where(count > 0, total / scale, np.nan).astype(np.float32)
        steps = int(self._steps[-1])
        first, ends = self._steps[:-1], self._steps[1:]
        has_steps = ends > first
        after = np.append(answers[1:steps], np.float32(np.nan))[:steps]
        after[ends[has_steps] - 1] = answers[steps:][has_steps]
        before = np.full(len(first), np.nan, np.float32)
        before[has_steps] = answers[first[has_steps]]
        return after, before
