"""A dataset of PyTorch, in a module that a worker can import whichever way it was started."""

from __future__ import annotations

import os

import numpy as np

from agentrl_core import Batch, Store, advantage

ITERATIONS = 4


class Iterations:
    """The batches of a run, read in a worker, together with a pickled batch of the dataset."""

    def __init__(self, store: Store, batch: Batch) -> None:
        self.store, self.batch = store, batch

    def __len__(self) -> int:
        return ITERATIONS

    def __getitem__(self, iteration: int) -> list[object]:
        batch = self.store.batch(iteration)
        scores = advantage.group_relative(
            np.nan_to_num(batch.column("reward", "draw")), batch.column("group_id", "draw")
        )
        # Large enough for several threads in the worker.
        large = advantage.group_relative(np.tile([0.0, 2.0], 100_000), np.repeat(np.arange(1000), 200))
        tokens = batch.column("token", "token").tolist() + self.batch.column("token", "token").tolist()
        return [os.getpid(), tokens, scores.tolist(), float(large.sum())]
