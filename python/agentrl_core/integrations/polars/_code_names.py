"""Replace integer codes in tables by names, and 0 and 1 by booleans."""

from __future__ import annotations

from typing import Any

import polars as pl

from agentrl_core.data.table_codes import CODES

TRUTHS = ("success", "terminated", "truncated", "votes", "trained")
"""Columns of zeros and ones, which become booleans."""

OPERATIONS = ("start", "fork", "continue", "inject", "splice", "rollback", "replace", "prune", "stop", "resume")
"""Names of the codes of `decisions.operation`."""

_NAMES = {**CODES, "operation": OPERATIONS}


def named(frame: Any) -> Any:
    """Return a frame, lazy or not, with names in place of codes. Unknown codes become null; names are unchanged."""
    schema = frame.collect_schema()
    codes = [name for name in schema.names() if name in _NAMES and schema[name].is_integer()]
    truths = [name for name in schema.names() if name in TRUTHS and schema[name].is_integer()]
    known = {name: pl.col(name).cast(pl.UInt8) for name in codes}
    words = (
        to_enum(pl.when(code < len(_NAMES[name])).then(code), pl.Enum(_NAMES[name])).alias(name)
        for name, code in known.items()
    )
    return frame.with_columns(*words, *(pl.col(name).cast(pl.Boolean) for name in truths))


def to_enum(codes: Any, kind: Any) -> Any:
    """Convert codes to an Enum, by `cat.to` in polars 2 and by a cast in earlier versions."""
    return codes.cat.to(kind) if hasattr(codes.cat, "to") else codes.cast(kind)
