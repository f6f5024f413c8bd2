"""What the bounds of a file's columns tell of a predicate: whether all of its rows pass, or none."""

from __future__ import annotations

import json
import warnings
from io import StringIO
from typing import Any

import polars as pl

# A predicate is tried on every whole number between the bounds of a column, unless there are more.
_MOST = 1 << 20


def told(predicate: pl.Expr, bounds: dict[str, tuple[int, int]]) -> bool | None:
    """Whether rows pass whose values lie between the bounds: True where all do, False where none can, else None.

    Each part of the predicate that has to be true and reads one column with bounds is asked about all values between
    them, so whatever Polars can say of a number is understood. Columns with bounds have no nulls; those without can
    have any value.

    Example:
        >>> import polars as pl
        >>> from agentrl_core.integrations.polars._bounds import told
        >>> wanted = (pl.col("iteration") % 10 == 7) & (pl.col("reward") > 0)
        >>> told(wanted, {"iteration": (0, 6)}), told(wanted, {"iteration": (0, 7)})
        (False, None)
        >>> told(pl.col("iteration") < 9, {"iteration": (0, 7)})
        True
    """
    every = True
    for term in terms(predicate):
        passes = _told(term, bounds)
        if passes is False:
            return False
        every = every and passes is True
    return every or None


def _told(term: pl.Expr, bounds: dict[str, tuple[int, int]]) -> bool | None:
    names = set(term.meta.root_names())
    if len(names) != 1 or not names <= bounds.keys():
        return None
    (name,) = names
    first, last = bounds[name]
    if last - first >= _MOST:
        return None
    values = pl.DataFrame({name: pl.int_range(first, last + 1, dtype=pl.Int64, eager=True)})
    try:
        passing = values.filter(term).height
    except pl.exceptions.PolarsError:  # a value between the bounds that no row need have
        return None
    return passing > 0 if passing in (0, values.height) else None


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
