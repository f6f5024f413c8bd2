"""Updates: the optimizer steps of one batch, and which draws each trains on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.update.metrics import Metrics
from agentrl_core.update.prepared import Prepared, Shared
from agentrl_core.update.update import Update

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.loss import Train


class Updates:
    """The optimizer steps of a batch: epochs x minibatches of them for each loss. `Recipe.updates` makes one.

    In each epoch the draws whose score is finite are put in a fresh order and dealt into as many parts as the loss has
    minibatches, of equal size (up to one; a part is never empty, so a tiny batch has fewer). The order is keyed by
    (seed, epoch). Of a loss on groups or pairs these are dealt instead, so that each is whole in one update. The pairs
    are the two draws with the same number in the draws' column `pair` (negative: no pair); without it the groups, of
    two draws each. Losses run one after the other, each with its own draws, denominators and metrics.

    Args:
        batch: the batch, with the columns that the losses need.
        trainings: the losses in order, each with its model, epochs and minibatches.
        shared: how branches that share a sampled token count it; see `Batch.token_weights`.
        seed: of the order in which draws are dealt.

    Attributes:
        batch: the batch.
    """

    def __init__(self, batch: Batch, trainings: Sequence[Train], *, shared: Shared = "each", seed: int = 0) -> None:
        self.batch = batch
        self._seed = seed
        self._parts = [(training, Prepared.of(batch, training, shared), Metrics()) for training in trainings]

    def __len__(self) -> int:
        """How many optimizer steps there are."""
        return sum(
            cast("int", training.epochs) * _parts_of(prepared, training) for training, prepared, _ in self._parts
        )

    def __iter__(self) -> Iterator[Update]:
        """Yield the optimizer steps in order."""
        for training, prepared, metrics in self._parts:
            for epoch in range(cast("int", training.epochs)):
                for draws in _dealt(prepared, _parts_of(prepared, training), self._seed, epoch):
                    yield Update(prepared, draws, metrics)

    @property
    def metrics(self) -> dict[str, float]:
        """Means over what `Update.loss` has seen so far: `loss` per update, everything else per trained token.

        Also `tokens`, how many trained tokens that were, and `updates`. Those of another model than `policy` have its
        name before them: `critic.loss`. Reading it waits for the device; nothing else does.
        """
        return {
            name if prepared.model == "policy" else f"{prepared.model}.{name}": value
            for _, prepared, metrics in self._parts
            for name, value in metrics.means().items()
        }


def _parts_of(prepared: Prepared, training: Train) -> int:
    """How many minibatches an epoch has: none is empty."""
    return min(cast("int", training.minibatches), len(np.unique(prepared.dealt[prepared.valid])))


def _dealt(prepared: Prepared, parts: int, seed: int, epoch: int) -> Iterator[NDArray[np.int64]]:
    """The draws of each minibatch of an epoch."""
    if not parts:
        return
    draws = np.flatnonzero(prepared.valid).astype(np.int64)
    _, first, place = np.unique(prepared.dealt[draws], return_index=True, return_inverse=True)
    base = np.uint64(_core.rng.structural_seed(seed, epoch))
    order = np.argsort(_core.rng.uniform(base + draws[first].astype(np.uint64), 0), kind="stable")
    for units in np.array_split(order, parts):
        yield draws[np.isin(place, units)]
