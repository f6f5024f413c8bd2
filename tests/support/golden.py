"""Write the store of format v1 that every later version must read: `python golden.py FOLDER`, run once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from forests import grow

from agentrl_core import Batch, Store


def expected_columns(iteration: int, batch: Batch) -> dict[str, list[float]]:
    """Return the computed columns of an iteration: simple enough to recompute in a test."""
    return {"advantage": [iteration + draw / 4 for draw in range(batch.num_draws)]}


def write(folder: Path) -> None:
    """Write three iterations, one with replayed trajectories, and rollouts that were never trained."""
    with Store.open(folder) as store:
        for iteration in range(3):
            batch, _ = grow(iteration, groups=2, members=2, turns=2, iteration=iteration)
            if iteration == 2:
                batch = Batch.concat([batch, store.trajectory_batch([0, 1])]).with_draws([1, 0], reason="golden")
            batch = store.rebase(batch)
            store.append(batch, iteration=iteration)
            batch = batch.with_columns("draw", **expected_columns(iteration, batch))
            batch = batch.with_columns("token", weight=batch.token_weights(np.arange(batch.num_draws)))
            store.close_iteration(batch.with_recipe("golden", {"iteration": iteration}), {"iteration": iteration})
        broken_off = grow(3, groups=1, members=2, turns=2, iteration=3)[0].select_draws([])
        store.append(store.rebase(broken_off), iteration=3, partial=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
