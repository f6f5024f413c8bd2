"""Stores with a few trained iterations."""

from __future__ import annotations

import numpy as np
import polars as pl
from forests import grow, same

from agentrl_core import Batch, Store


def trained(store: Store, iteration: int) -> Batch:
    """What a loop does with one iteration."""
    batch = store.rebase(grow(iteration, iteration=iteration)[0])
    store.append(batch, iteration=iteration)
    rng = np.random.default_rng(iteration)
    batch = batch.with_columns("draw", advantage=rng.random(batch.num_draws))
    batch = batch.with_columns("token", weight=batch.token_weights(np.arange(batch.num_draws)))
    batch = batch.with_columns("node_token", reference_logprob=-rng.random(batch.offsets("node_token")[-1]))
    batch = batch.with_source("mine", {"clip": 0.2})
    store.close_iteration(batch, {"iteration": iteration, "metrics": {"loss": 0.5, "kl": float("nan")}})
    return batch


def assert_same_as_trained(found: Batch, expected: Batch) -> None:
    assert same(found, expected)
    assert pl.DataFrame(found.nodes).equals(pl.DataFrame(expected.nodes), null_equal=True), "the time of making too"
    for name in ("draw_columns", "step_columns", "node_columns"):
        mine, other = getattr(found, name), getattr(expected, name)
        assert pl.DataFrame(mine).equals(pl.DataFrame(other), null_equal=True)
    for name, level in [("advantage", "draw"), ("weight", "token"), ("reference_logprob", "node_token")]:
        column = expected.column(name, level)
        assert found.column(name, level).dtype == column.dtype
        np.testing.assert_array_equal(found.column(name, level), column)
