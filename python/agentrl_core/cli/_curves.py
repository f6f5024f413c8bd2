"""Draw curves of a run in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core.cli._terminal import number

if TYPE_CHECKING:
    import polars as pl

_BARS = "▁▂▃▄▅▆▇█"
_MISSING = " "


def sparkline(values: Sequence[float | None], width: int = 32) -> str:
    """Return values as a line of bars, the smallest lowest; above `width` values, each bar is the mean of several.

    Example:
        >>> from agentrl_core.cli._curves import sparkline
        >>> sparkline([0.0, 0.5, None, 1.0])
        '▁▅ █'
        >>> sparkline([3.0, 3.0])
        '▄▄'
    """
    if len(values) > width:
        bounds = [round(place * len(values) / width) for place in range(width + 1)]
        values = [_mean(values[bounds[place] : bounds[place + 1]]) for place in range(width)]
    known = [float(value) for value in values if value is not None and _is_known(value)]
    if not known:
        return _MISSING * len(values)
    low, high = min(known), max(known)
    return "".join(_bar(value, low, high) for value in values)


def curves(rows: pl.DataFrame, width: int = 32) -> list[tuple[str, str, str, str]]:
    """Return name, sparkline, first and last number of each column that has numbers, except the iteration."""
    entries = []
    for name in rows.columns:
        values: list[Any] = rows[name].to_list()
        known = [value for value in values if _is_known(value)]
        if name != "iteration" and known:
            entries.append((name, sparkline(values, width), number(known[0]), number(known[-1])))
    return entries


def _bar(value: float | None, low: float, high: float) -> str:
    if value is None or not _is_known(value):
        return _MISSING
    if low == high:
        return _BARS[len(_BARS) // 2 - 1]
    return _BARS[min(len(_BARS) - 1, int((value - low) / (high - low) * len(_BARS)))]


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
