"""Paths as text, and as messages of a chat."""

from __future__ import annotations

import polars as pl

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.polars._lazy_columns import WantedColumns
from agentrl_core.integrations.polars._token_frames import path_nodes
from agentrl_core.integrations.polars.tables import Tables
from agentrl_core.integrations.polars.vocabulary import Vocabulary

_ROLES = {"prompt": "user", "action": "assistant", "injected": "assistant", "observation": "tool"}
MESSAGES = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))


def text(frame: pl.DataFrame, vocabulary: Vocabulary) -> pl.DataFrame:
    """Add the texts of token lists; see the namespace method `agentrl.text`."""
    _refuse(frame, "text")
    return frame.with_columns(vocabulary.texts(frame["tokens"]).alias("text"))


def chats(frame: pl.DataFrame, tables: Tables, vocabulary: Vocabulary) -> pl.DataFrame:
    """Add the messages of trajectories; see the namespace method `agentrl.chats`."""
    _refuse(frame, "messages")
    keyed = frame.select("trajectory_id").with_row_index("row")
    special = [token for token, marks in enumerate(vocabulary.special.tolist()) if marks]
    texts = pl.col("tokens").list.head("end").list.eval(pl.element().filter(~pl.element().is_in(special)))
    nodes = path_nodes(keyed, tables, WantedColumns.of("tokens", "kind")).select(
        "row", texts, role=pl.col("kind").replace_strict(_ROLES)
    )
    nodes = nodes.with_columns(turn=pl.struct("row", "role").rle_id())
    turns = nodes.group_by("turn", maintain_order=True).agg(
        pl.col("row", "role").first(), pl.col("tokens").list.explode(keep_nulls=False, empty_as_null=False)
    )
    turns = turns.select("row", message=pl.struct("role", content=vocabulary.texts(turns["tokens"])))
    messages = turns.group_by("row", maintain_order=True).agg(messages="message")
    joined = keyed.select("row").join(messages, on="row", how="left", maintain_order="left")
    return frame.with_columns(joined["messages"].cast(MESSAGES))


def _refuse(frame: pl.DataFrame, name: str) -> None:
    if name in frame.columns:
        raise InvalidInputError(f"the frame already has a column {name}, which this call adds; rename or drop it")
