"""Evaluate numbers that are written as arithmetic: `"3/2"`, `"-exp(-0.5) / 4"`, `"(R - mean(R)) / std(R)"`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Value = NDArray[np.float64]
_OPERATORS: dict[type, Callable[..., Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_COMPARISONS: dict[type, Callable[..., Value]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
}


def _extreme(pairwise: np.ufunc) -> Callable[..., Value]:
    """Return a function that computes the extreme of one argument, or the elementwise extreme of several."""

    def extreme(first: Value, *others: Value) -> Value:
        if not others:
            return np.asarray(pairwise.reduce(first))
        for other in others:
            first = np.asarray(pairwise(first, other))
        return first

    return extreme


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "abs": np.abs,
    "clip": np.clip,
    "cos": np.cos,
    "cumsum": np.cumsum,
    "exp": np.exp,
    "log": np.log,
    "max": _extreme(np.maximum),
    "mean": np.mean,
    "median": np.median,
    "min": _extreme(np.minimum),
    "pstd": np.std,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": np.sqrt,
    "std": lambda x: np.asarray(np.std(x, ddof=1)),
    "sum": np.sum,
    "tanh": np.tanh,
}
"""`std` divides by n - 1, `pstd` by n."""
_NUMBERS = {"nan": math.nan, "inf": math.inf, "pi": math.pi}


def number(expression: float | str) -> float:
    """Return the number of a text: a number, or arithmetic of numbers, and nothing else."""
    if not isinstance(expression, str):
        return float(expression)
    value = evaluate(expression, {})
    if np.ndim(value):
        raise ValueError(f"{expression!r} is no arithmetic of numbers alone")
    return float(value)


def evaluate(expression: str, names: Mapping[str, Value]) -> Value:
    """Return the array that arithmetic of numbers, lists and names evaluates to."""
    return _value(ast.parse(expression, mode="eval").body, names)


def _value(node: ast.expr, names: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value=int() | float() as value):
            return np.asarray(value, np.float64)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name(id=name) if name in _NUMBERS:
            return np.asarray(_NUMBERS[name])
        case ast.List(elts=parts):
            return np.array([_value(part, names) for part in parts], np.float64)
        case ast.Subscript(value=value, slice=ast.Constant(value=int() as place)):
            return np.asarray(_value(value, names)[place])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, names))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            return np.asarray(_COMPARISONS[type(op)](_value(left, names), _value(right, names)), np.float64)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(argument, names) for argument in arguments))
    raise ValueError(f"{ast.unparse(node)} is no arithmetic of numbers")
