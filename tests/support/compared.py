"""Helpers to compare systems: columns as lists, approximate equality, and runs over several iterations."""

from __future__ import annotations

import json

import numpy as np
from rollouts import small

from agentrl_core import Batch
from agentrl_core.component import IterationRecord, StatefulComponent


def column(batch: Batch, name: str = "advantage", level: str = "draw") -> list[float]:
    return batch.column(name, level).astype(float).tolist()


def close(actual: object, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def visits(component: StatefulComponent, *scores: list[float], **columns: list[float]) -> list[list[float]]:
    """Return the advantages of one group in successive iterations; the state passes through JSON in between."""
    state = component.initial_state()
    out = []
    for row in scores:
        closed = component.add_columns(state, small([(0, [1])] * len(row), draw_score=row, **columns))
        state = json.loads(json.dumps(component.next(state, IterationRecord.of(closed))))
        out.append(column(closed))
    return out
