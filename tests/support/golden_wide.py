"""Write the store of format v3 that every later version must read: `python golden_wide.py FOLDER`, run once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentrl_core import Batch, Forest, Store

WIDTH = 3


def grown(iteration: int) -> Batch:
    """Return one group of two rollouts with a common prompt."""
    forest = Forest(iteration=iteration)
    forest.add_group(0, f"task {iteration}")
    for member in range(2):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, 2], kind="prompt")
        forest.append(trajectory, [3, 4 + member, 5], kind="action", logprobs=[-0.5, -0.25, -1.0])
        forest.finish(trajectory, reward=float(member))
    return forest.freeze()


def top_ids(iteration: int, batch: Batch) -> NDArray[np.int32]:
    """Return the computed values of each stored token: simple enough to recompute in a test."""
    count = len(batch.column("token", "node_token"))
    return (100 * iteration + np.arange(count * WIDTH, dtype=np.int32)).reshape(count, WIDTH)


def write(folder: Path) -> None:
    """Write two iterations with a column of several values per token."""
    with Store.open(folder) as store:
        for iteration in range(2):
            batch = store.rebase(grown(iteration))
            store.append(batch, iteration=iteration)
            batch = batch.with_columns("node_token", teacher_top_ids=top_ids(iteration, batch))
            store.close_iteration(batch, {"iteration": iteration})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
