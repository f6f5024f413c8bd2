"""Which files can have rows that a predicate is true of: told from the bounds of their columns."""

from __future__ import annotations

import json
import warnings
from io import StringIO
from typing import Any

import polars as pl

# A predicate is tried on every whole number between the bounds of a column, unless there are more.
_MOST = 1 << 20


def can_be_true(predicate: pl.Expr, bounds: dict[str, tuple[int, int]]) -> bool:
    """Whether a row can pass whose values lie between the bounds; columns without bounds can have any value.

    Each part of the predicate that has to be true and reads one column with bounds is asked about all values between
    them, so whatever Polars can say of a number is understood.

    Example:
        >>> import polars as pl
        >>> from agentrl_core.integrations.polars._bounds import can_be_true
        >>> wanted = (pl.col("iteration") % 10 == 7) & (pl.col("reward") > 0)
        >>> can_be_true(wanted, {"iteration": (0, 6)}), can_be_true(wanted, {"iteration": (0, 7)})
        (False, True)
    """
    return all(_can_be_true(term, bounds) for term in terms(predicate))


def _can_be_true(term: pl.Expr, bounds: dict[str, tuple[int, int]]) -> bool:
    names = set(term.meta.root_names())
    if len(names) != 1 or not names <= bounds.keys():
        return True
    (name,) = names
    first, last = bounds[name]
    if last - first >= _MOST:
        return True
    values = pl.DataFrame({name: pl.int_range(first, last + 1, dtype=pl.Int64, eager=True)})
    try:
        return values.filter(term).height > 0
    except pl.exceptions.PolarsError:  # a value between the bounds that no row need have
        return True


def terms(predicate: pl.Expr) -> list[pl.Expr]:
    """The parts of a predicate that all have to be true."""
    if len(set(predicate.meta.root_names())) == 1:
        return [predicate]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trees = _split(json.loads(predicate.meta.serialize(format="json")))
            return [pl.Expr.deserialize(StringIO(json.dumps(tree)), format="json") for tree in trees]
        except (pl.exceptions.PolarsError, ValueError):  # a function of Python, say
            return [predicate]


def _split(tree: Any) -> list[Any]:
    node = tree.get("BinaryExpr") if isinstance(tree, dict) else None
    if node is None or node["op"] not in ("And", "LogicalAnd"):
        return [tree]
    return _split(node["left"]) + _split(node["right"])
