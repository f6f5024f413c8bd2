"""Evaluate predicates on the bounds of columns: whether all rows of a file or block pass, or none."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from io import StringIO
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

# The most integers between the bounds of a column on which a predicate is evaluated.
_MOST = 1 << 20

_SIGNED = (pl.Int8, pl.Int16, pl.Int32, pl.Int64)


class ColumnTexts(NamedTuple):
    """Texts of a column by block: block `block[i]` has `texts[text[i]]`. Each block has at least one, and no null."""

    texts: list[str]
    block: NDArray[np.int64]
    text: NDArray[np.int64]


Bounds = Mapping[str, Any]
"""The bounds of columns: the least and the greatest value, as two numbers or as two arrays with one for each block
of rows; or the `ColumnTexts` of blocks."""

BoundsCheck = Callable[[Bounds], tuple[Any, Any]]
"""Returns whether any row with values between the bounds can pass, and whether all do; arrays for array bounds."""


def bounds_check(predicate: pl.Expr) -> BoundsCheck:
    """Return a function that decides by column bounds whether the rows of files and blocks pass a predicate.

    Each required part of the predicate that reads a single column with bounds is evaluated on all values between them,
    so any Polars expression on a number is supported; values of a list are looked up. Columns with bounds have no
    nulls; columns without bounds may have any value.

    Example:
        >>> import numpy as np
        >>> import polars as pl
        >>> from agentrl_core.integrations.polars._predicate_bounds import bounds_check
        >>> check = bounds_check((pl.col("iteration") % 10 == 7) & (pl.col("reward") > 0))
        >>> can, every = check({"iteration": (np.array([0, 0]), np.array([6, 7]))})
        >>> can.tolist(), every.tolist()
        ([False, True], [False, False])
    """
    parts = [_term_check(term) for term in terms(predicate)]

    def check(bounds: Bounds) -> tuple[Any, Any]:
        can, every = True, True
        for part in parts:
            part_can, part_every = part(bounds)
            can, every = can & part_can, every & part_every
        return can, every

    return check


def _term_check(term: pl.Expr) -> BoundsCheck:
    names = set(term.meta.root_names())
    if len(names) != 1:
        return _unknown
    (name,) = names
    listed = _listed(term, name)

    def check(bounds: Bounds) -> tuple[Any, Any]:
        if name not in bounds:
            return _unknown(bounds)
        known = bounds[name]
        if isinstance(known, ColumnTexts):
            return _of_texts(term, name, known)
        first, last = known
        passing = listed
        if passing is None:
            low, high = int(np.min(first)), int(np.max(last))
            if high - low >= _MOST:
                return _unknown(bounds)
            values = pl.DataFrame({name: pl.int_range(low, high + 1, dtype=pl.Int64, eager=True)})
            try:
                passing = values.filter(term)[name].to_numpy()
            except pl.exceptions.PolarsError:  # raised for a value between the bounds that no row may have
                return _unknown(bounds)
        count = np.searchsorted(passing, last, "right") - np.searchsorted(passing, first)
        return count > 0, count == last - first + 1

    return check


def _of_texts(term: pl.Expr, name: str, known: ColumnTexts) -> tuple[Any, Any]:
    try:
        passing = pl.DataFrame({name: known.texts}, schema={name: pl.String}).with_row_index("row").filter(term)["row"]
    except pl.exceptions.PolarsError:
        return _unknown({})
    passes = np.zeros(len(known.texts), np.int64)
    passes[passing.to_numpy()] = 1
    count = np.bincount(known.block, passes[known.text])
    return count > 0, count == np.bincount(known.block)


def _unknown(_: Bounds) -> tuple[bool, bool]:
    return True, False


def _listed(term: pl.Expr, name: str) -> NDArray[np.int64] | None:
    """Return the sorted values of an `is_in` predicate on a column; None if the predicate has another form."""
    for part in term.meta.pop():
        if part.meta.is_literal() and term.meta.eq(pl.col(name).is_in(part)):
            values = pl.select(part).to_series()
            if isinstance(values.dtype, pl.List) and values.dtype.inner in _SIGNED:
                return values.explode().drop_nulls().cast(pl.Int64).unique().sort().to_numpy()
    return None


def terms(predicate: pl.Expr) -> list[pl.Expr]:
    """Return the parts of a predicate that must all be true."""
    if len(set(predicate.meta.root_names())) == 1:
        return [predicate]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trees = _split(json.loads(predicate.meta.serialize(format="json")))
            return [pl.Expr.deserialize(StringIO(json.dumps(tree)), format="json") for tree in trees]
        except (pl.exceptions.PolarsError, ValueError):  # such as for a Python function
            return [predicate]


def _split(tree: Any) -> list[Any]:
    node = tree.get("BinaryExpr") if isinstance(tree, dict) else None
    if node is None or node["op"] not in ("And", "LogicalAnd"):
        return [tree]
    return _split(node["left"]) + _split(node["right"])
