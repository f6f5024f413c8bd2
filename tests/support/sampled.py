"""Record an engine's requests and responses, and check that the tables hold exactly these."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

import agentrl_core as arl
from agentrl_core.engine import Request, Segment

ACTION = 1


class RecordingEngine:
    """An engine that records requests and responses, by the seed of the request."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.exchanges: dict[int, tuple[Request, Segment]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def beside(self, engine: Any) -> RecordingEngine:
        """Record another engine's responses together with those of this one."""
        other = RecordingEngine(engine)
        other.exchanges = self.exchanges
        return other

    async def generate(self, request: Request) -> Segment:
        segment = await self._engine.generate(request)
        assert request.seed not in self.exchanges, "no segment is sampled twice, and none has the seed of another"
        self.exchanges[request.seed] = request, segment
        return segment


def check_sampled(batch: arl.Batch, *engines: RecordingEngine) -> int:
    """Assert that rows, masks and log-probs are exactly the sampled ones; return the number of trained tokens.

    Each sampled node holds the tokens and log-probs of one segment, after the tokens of its request. A trained token
    has the log-prob that it was sampled with, or none if it was not sampled in its place.
    """
    exchanges = {seed: exchange for engine in engines for seed, exchange in engine.exchanges.items()}
    nodes = pl.DataFrame(batch.nodes)
    rows = {row["node_id"]: row for row in nodes.iter_rows(named=True)}
    logprobs: list[float] = []
    sampled: list[bool] = []
    for row in nodes.iter_rows(named=True):
        count = len(row["tokens"])
        if row["kind"] != ACTION or row["seed"] is None:
            assert row["logprobs"] is None, "what was not sampled has no log-probs"
            logprobs += [np.nan] * count
            sampled += [False] * count
            continue
        request, segment = exchanges[row["seed"]]
        assert row["tokens"] == segment.tokens.tolist()
        np.testing.assert_array_equal(np.array(row["logprobs"], np.float32), segment.logprobs)
        assert row["trainable"] is None or set(row["trainable"]) == {1}, (
            "what was sampled is trained whole or not at all"
        )
        assert _before(row, rows) == request.tokens.tolist()
        logprobs += row["logprobs"]
        sampled += [True] * count
    stored = batch.column("node_token", "token")
    trained = batch.column("trainable", "token").astype(bool)
    behaviour = batch.column("behaviour_logprob", "token") if any(sampled) else np.full(len(stored), np.nan)
    np.testing.assert_array_equal(behaviour, np.array(logprobs, np.float32)[stored])
    masked = nodes.filter((pl.col("kind") == ACTION) & pl.col("trainable").is_not_null())
    assert all(seed is None for seed in masked["seed"])
    return int((trained & np.array(sampled, np.bool_)[stored]).sum())


def _before(row: dict[str, Any], rows: dict[int, dict[str, Any]]) -> list[int]:
    """Return the tokens of the path before a node."""
    tokens: list[int] = []
    while row["parent_id"] is not None:
        end, row = row["parent_end"], rows[row["parent_id"]]
        tokens = row["tokens"][:end] + tokens
    return tokens
