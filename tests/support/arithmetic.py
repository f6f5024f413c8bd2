"""Numbers that are written as arithmetic: `"3/2"`, `"-exp(-0.5) / 4"`, `"nan"`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable

_OPERATORS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "exp": math.exp,
    "log": math.log,
    "max": max,
    "min": min,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
}
_NUMBERS = {"nan": math.nan, "inf": math.inf, "pi": math.pi}


def number(written: float | str) -> float:
    """The number that is written: a number, or arithmetic of numbers, and nothing else."""
    if isinstance(written, str):
        return _value(ast.parse(written, mode="eval").body)
    return float(written)


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name) if name in _NUMBERS:
            return _NUMBERS[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*map(_value, arguments))
    raise ValueError(f"{ast.unparse(node)} is no arithmetic of numbers")
