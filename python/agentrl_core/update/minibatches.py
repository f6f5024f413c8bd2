"""Divide the draws of a batch into optimizer steps (epochs x minibatches), and yield the steps in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core._util.lazy_torch import require_torch
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.update.metrics import Metrics
from agentrl_core.update.optimizer_step import Update, named_metrics
from agentrl_core.update.prepared_batch import PreparedBatch, PreparedElsewhere, Shared

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.loss import Train
    from agentrl_core.model.ranks import Group
    from agentrl_core.update.hooks import HookRunner
    from agentrl_core.update.loss_per_draw import DrawLosses


class Updates:
    """The optimizer steps of a batch: epochs x minibatches for each loss. `Recipe.updates` creates it.

    Each epoch shuffles the draws with a finite score and splits them into the loss's minibatches, of equal size up to
    one draw. A minibatch is never empty, so a tiny batch has fewer. The order depends on (seed, epoch). A loss on
    groups or pairs splits these instead, so that each stays in one update. A pair is two draws with the same number in
    the draw column `pair` (negative: no pair), or without it a group of two draws. Losses run one after the other, each
    with its own draws, denominators and metrics.

    Args:
        batch: the batch, with the columns that the losses need; None on other ranks than the first.
        trainings: the losses in order, each with its model, epochs and minibatches.
        shared: how branches that share a sampled token count it; see `Batch.token_weights`.
        seed: seed of the order of draws.
        between: hooks between steps; None: no hooks.
        stages: losses of stages that are repeated after the others.
        metrics_of_all: whether draws that cannot change the loss are also run, for their metrics; see `Update.pack`.
        draw_losses: whether the loss of each draw is recorded, for `with_losses`.
        group: the ranks that run the steps together, or None.

    Attributes:
        batch: the batch; None on other ranks than the first.
        between: hooks between steps, or None.
    """

    def __init__(
        self,
        batch: Batch | None,
        trainings: Sequence[Train],
        *,
        shared: Shared = "each",
        seed: int = 0,
        between: HookRunner | None = None,
        stages: Mapping[str, Sequence[Train]] | None = None,
        metrics_of_all: bool = False,
        draw_losses: bool = False,
        group: Group | None = None,
    ) -> None:
        self.batch = batch
        self.between = between
        self._seed = seed

        def prepare(training: Train) -> tuple[PreparedBatch, int]:
            prepared_batch = PreparedBatch.of(
                cast("Batch", batch), training, shared, metrics_of_all=metrics_of_all, unfolded=draw_losses
            )
            # No minibatch is empty.
            return prepared_batch, min(
                cast("int", training.minibatches), len(np.unique(prepared_batch.dealt[prepared_batch.valid]))
            )

        def part(training: Train, prepared: PreparedBatch | PreparedElsewhere, count: int) -> _Part:
            recorder = _recorder(batch, group) if draw_losses else None
            return _Part(training, prepared, count, Metrics(group), recorder)

        def parts(of: Sequence[Train]) -> list[_Part]:
            if group is None:
                return [part(training, *prepare(training)) for training in of]
            from agentrl_core.model.collectives import from_first

            prepared_batches: list[tuple[PreparedBatch, int]] = []

            def counted() -> list[int]:
                prepared_batches.extend(map(prepare, of))
                return [count for _, count in prepared_batches]

            counts = from_first(counted, group)
            if prepared_batches:
                return [part(training, *each) for training, each in zip(of, prepared_batches, strict=True)]
            elsewhere = [PreparedElsewhere(training.loss, training.model) for training in of]
            return [part(*each) for each in zip(of, elsewhere, counts, strict=True)]

        self._parts = parts([each for each in trainings if between is None or not between.frozen(each.model)])
        self._again = {stage: parts(each) for stage, each in (stages or {}).items()}

    def __len__(self) -> int:
        """Number of optimizer steps, without repeated passes."""
        return sum(cast("int", part.training.epochs) * part.count for part in self._parts)

    def __iter__(self) -> Iterator[Update]:
        """Yield the optimizer steps in order. Hooks between two steps run when the second is requested."""
        yield from self._in_order()
        for part in self._every_part():
            part.metrics.share()
            if part.draw_losses is not None:
                part.draw_losses.share()

    def _in_order(self) -> Iterator[Update]:
        yield from self._steps(self._parts, 0)
        if self.between is None:
            return
        for place, repeat in self.between.repeats():
            parts = self._again[repeat.stage]
            for number in range(repeat.at_most):
                if self.between.stopped:
                    return
                for part in parts:
                    part.metrics.begin_pass()
                yield from self._steps(parts, number + 1)
                means: dict[str, float] = {}
                for part in parts:
                    means.update(named_metrics(part.prepared.model, part.metrics.of_pass()))
                if not self.between.goes_on(place, repeat, means):
                    break

    def _steps(self, parts: Sequence[_Part], again: int) -> Iterator[Update]:
        """Yield the steps of some losses; repeated passes have a new order of draws."""
        between = self.between
        for part in parts:
            epochs = cast("int", part.training.epochs)
            for epoch in range(again * epochs, (again + 1) * epochs):
                for draws in part.dealt(self._seed, epoch):
                    if between is None:
                        yield part.update(draws)
                        continue
                    if between.stopped:
                        return
                    between.begin_step()
                    update = part.update(draws, between)
                    yield update
                    between.end_step(update)

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics over all calls of `Update.loss` so far: `loss` per update, counts, maxima, means per trained token.

        Also `tokens`, the number of trained tokens, `idle_tokens`, the number of skipped tokens that cannot change the
        loss (see `Update.pack`), and `updates`. Metrics of other models than `policy` have the model as prefix:
        `critic.loss`; those of repeated passes the stage. If controllers of the recipe move with every step, `steps`
        has the metrics that they read in each. Reading it waits for the device.

        On several ranks it has the metrics of all. Read it on one rank after the last step, or on every rank before.
        """
        metrics: dict[str, Any] = {}
        for part in self._every_part():
            means = part.metrics.means()
            stage = "" if part in self._parts else f"{part.training.stage}."
            metrics.update(
                {f"{stage}{name}": value for name, value in named_metrics(part.prepared.model, means).items()}
            )
        return metrics if self.between is None else {**metrics, **self.between.metrics()}

    def with_losses(self, model: str = "policy") -> Batch:
        """Return the batch with the draw column `loss`: the loss of each draw in the steps of a model.

        In one step, a draw's loss is the contribution of its tokens to the loss of the step, times the number of draws
        of the step, so that the mean over the step's draws is the loss of the step; with `sequence_mean` it is the mean
        over the tokens of the draw. The column has the mean over the steps that trained the draw, without repeated
        passes, summed over the losses of the model; NaN for a draw that no step trained. On several ranks, call it on
        the first rank, after the last step.

        Args:
            model: name of the model.

        Raises:
            InvalidInputError: the updates were created without `draw_losses=True`, no update trains the model, or this
                is not the first rank.
        """
        parts = [part for part in self._parts if part.prepared.model == model]
        losses = [part.draw_losses.means() for part in parts if part.draw_losses is not None]
        if not losses:
            trained = ", ".join(sorted({repr(part.prepared.model) for part in self._parts}))
            remedy = f"give a model that the updates train: {trained or 'none'}"
            if parts:
                remedy = "call recipe.updates(batch, draw_losses=True)"
            raise InvalidInputError(f"no losses of draws are known for model={model!r}; {remedy}")
        missing = np.all(np.isnan(losses), axis=0)
        return cast("Batch", self.batch).with_columns("draw", loss=np.where(missing, np.nan, np.nansum(losses, axis=0)))

    def _every_part(self) -> list[_Part]:
        """Return all losses with their data; losses of repeated stages come last."""
        return [*self._parts, *(part for parts in self._again.values() for part in parts)]


@dataclass(frozen=True, eq=False)
class _Part:
    """One loss of the updates, with the data that its steps share, and their metrics."""

    training: Train
    prepared: PreparedBatch | PreparedElsewhere
    count: int
    """Number of minibatches of an epoch."""
    metrics: Metrics
    draw_losses: DrawLosses | None

    def dealt(self, seed: int, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Yield the draws of each minibatch of an epoch; ranks other than the first receive them with their packs."""
        if isinstance(self.prepared, PreparedElsewhere):
            return iter([np.zeros(0, np.int64)] * self.count)
        return _dealt(self.prepared, self.count, seed, epoch, self.training.deal)

    def update(self, draws: NDArray[np.int64], between: HookRunner | None = None) -> Update:
        """Return the optimizer step on some draws, with the loss at the current values of step controllers."""
        loss = None if between is None else between.loss(self.training)
        prepared = self.prepared if loss is None else replace(self.prepared, loss=loss)
        step = None if between is None else between.step
        if self.draw_losses is None:
            return Update(prepared, draws, self.metrics, step)
        from agentrl_core.update.loss_per_draw import RecordedUpdate

        return RecordedUpdate(prepared, draws, self.metrics, step, draw_losses=self.draw_losses)


def _recorder(batch: Batch | None, group: Group | None) -> DrawLosses:
    require_torch("the losses of draws")
    from agentrl_core.update.loss_per_draw import DrawLosses

    return DrawLosses(batch, group)


def _dealt(prepared: PreparedBatch, parts: int, seed: int, epoch: int, deal: str) -> Iterator[NDArray[np.int64]]:
    """Yield the draws of each minibatch of an epoch."""
    if not parts:
        return
    draws = np.flatnonzero(prepared.valid).astype(np.int64)
    _, first, place = np.unique(prepared.dealt[draws], return_index=True, return_inverse=True)
    base = np.uint64(_core.rng.structural_seed(seed, epoch))
    chances = _core.rng.uniform(base + draws[first].astype(np.uint64), 0)
    minibatches = np.array_split(np.argsort(chances, kind="stable"), parts)
    if deal == "by_source":  # minibatches differ by at most one draw of each source
        order = np.lexsort((chances, np.asarray(prepared.batch.column("source", "draw"))[draws[first]]))
        minibatches = [order[part::parts] for part in range(parts)]
    for units in minibatches:
        yield draws[np.isin(place, units)]
