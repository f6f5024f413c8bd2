"""What the bounds of a file's columns tell of a predicate: whether all of its rows pass, or none."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from io import StringIO
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

# A predicate is tried on every whole number between the bounds of a column, unless there are more.
_MOST = 1 << 20

_SIGNED = (pl.Int8, pl.Int16, pl.Int32, pl.Int64)


Told = Callable[[dict[str, tuple[int, int]]], bool | None]
"""Whether rows pass whose values lie between some bounds: True where all do, False where none can, else None."""


def teller(predicate: pl.Expr) -> Told:
    """What tells of many files whether their rows pass, by the bounds of their columns.

    Each part of the predicate that has to be true and reads one column with bounds is asked about all values between
    them, so whatever Polars can say of a number is understood; values of a list are looked up. Columns with bounds have
    no nulls; those without can have any value.

    Example:
        >>> import polars as pl
        >>> from agentrl_core.integrations.polars._bounds import teller
        >>> told = teller((pl.col("iteration") % 10 == 7) & (pl.col("reward") > 0))
        >>> told({"iteration": (0, 6)}), told({"iteration": (0, 7)})
        (False, None)
        >>> teller(pl.col("iteration") < 9)({"iteration": (0, 7)})
        True
    """
    parts = [_teller(term) for term in terms(predicate)]

    def told(bounds: dict[str, tuple[int, int]]) -> bool | None:
        every = True
        for part in parts:
            passes = part(bounds)
            if passes is False:
                return False
            every = every and passes is True
        return every or None

    return told


def _teller(term: pl.Expr) -> Told:
    names = set(term.meta.root_names())
    if len(names) != 1:
        return lambda _: None
    (name,) = names
    values = _listed(term, name)

    def told(bounds: dict[str, tuple[int, int]]) -> bool | None:
        if name not in bounds:
            return None
        first, last = bounds[name]
        count = last - first + 1
        if values is not None:
            passing = int(np.searchsorted(values, last, "right") - np.searchsorted(values, first))
        elif count > _MOST:
            return None
        else:
            every = pl.DataFrame({name: pl.int_range(first, last + 1, dtype=pl.Int64, eager=True)})
            try:
                passing = every.filter(term).height
            except pl.exceptions.PolarsError:  # a value between the bounds that no row need have
                return None
        return passing > 0 if passing in (0, count) else None

    return told


def _listed(term: pl.Expr, name: str) -> NDArray[np.int64] | None:
    """The values of which a column has to have one, sorted, where that is what a predicate says."""
    for part in term.meta.pop():
        if part.meta.is_literal() and term.meta.eq(pl.col(name).is_in(part)):
            values = pl.select(part).to_series()
            if isinstance(values.dtype, pl.List) and values.dtype.inner in _SIGNED:
                return values.explode().drop_nulls().cast(pl.Int64).unique().sort().to_numpy()
    return None


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
