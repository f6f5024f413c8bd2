"""Iterations of hand-made groups in a store, in the form that replay reads."""

from __future__ import annotations

import numpy as np

from agentrl_core import Batch, Forest, Store
from agentrl_core.component import IterationRecord


def grow(iteration: int, groups: dict[str, list[float]], *, version: int | None = None) -> Batch:
    """Return a group for each task, with a member for each score: one prompt, one action of `member + 1` tokens."""
    forest = Forest(iteration=iteration)
    for number, (task, scores) in enumerate(groups.items()):
        forest.add_group(number, task)
        for member, score in enumerate(scores):
            path = forest.start(number, member)
            forest.append(path, [1, 2, number], kind="prompt")
            tokens = [3 + member] * (member + 1)
            logprobs = np.full(len(tokens), -0.5 - iteration)
            version_of = iteration if version is None else version
            forest.append(path, tokens, kind="action", logprobs=logprobs, policy_version=version_of)
            forest.step(path)
            forest.finish(path, reward=score, success=score > 0)
    batch = forest.freeze()
    return scored(batch)


def scored(batch: Batch) -> Batch:
    """Return the batch with column `score`: the reward."""
    return batch.with_columns("draw", score=np.asarray(batch.column("reward", "draw"), np.float32))


def keep(store: Store, batch: Batch, **columns: list[float]) -> IterationRecord:
    """Append and close an iteration; return the argument for a component's `next`."""
    iteration = store.iteration
    batch = store.rebase(batch)
    if columns:
        batch = batch.with_columns("draw", **{name: np.asarray(values, np.float32) for name, values in columns.items()})
    store.append(batch, iteration=iteration)
    store.close_iteration(batch, {})
    return IterationRecord.of(store.batch(iteration))
