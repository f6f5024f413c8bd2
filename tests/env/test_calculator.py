"""The calculator agrees with Python's integers, and no text makes it raise."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.env import Calculator, ToolReply
from agentrl_core.exceptions import InvalidInputError

ERRORS = {"too long", "too large", "too deep", "syntax error", "division by zero", "not an integer"}
large = Calculator(max_length=4000, max_digits=4000)


class InexactError(Exception):
    """Raised because Python's own result would not be an integer."""


class Exact(int):
    """An integer whose `/` is exact."""

    def __truediv__(self, other):
        if self % other:
            raise InexactError
        return Exact(self // other)


for name in ("add", "sub", "mul", "floordiv", "neg"):

    def method(self, *others, name=name):
        return Exact(getattr(int, f"__{name}__")(self, *others))

    setattr(Exact, f"__{name}__", method)


def by_python(text):
    """Evaluate a text with Python's own parser, after making it safe."""
    wrapped = re.sub(r"[0-9]+", lambda digits: f"Exact({int(digits.group())})", text)
    names = {"Exact": Exact, "lcm": lambda *v: Exact(math.lcm(*v)), "gcd": lambda *v: Exact(math.gcd(*v))}
    return int(eval(wrapped, {"__builtins__": {}}, names))


def compound(inner):
    return st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", " + ", " * "]), inner).map("".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        st.tuples(st.sampled_from(["lcm", "gcd"]), st.lists(inner, min_size=1, max_size=3)).map(
            lambda call: f"{call[0]}({','.join(call[1])})"
        ),
    )


expressions = st.recursive(st.integers(0, 10**6).map(str), compound, max_leaves=8)


@given(expressions)
def test_expressions_agree_with_pythons_integers(text):
    try:
        expected = ToolReply(str(by_python(text)), error=False)
    except ZeroDivisionError:
        expected = ToolReply("division by zero", error=True)
    except InexactError:
        expected = ToolReply("not an integer", error=True)
    reply = large(text)
    if reply.text == "too deep":
        assert text.count("(") > 10
    elif expected.error:
        assert reply.error, "which error comes first depends on the order of evaluation"
        assert reply.text in {"division by zero", "not an integer"}
    else:
        assert reply == expected


@given(st.one_of(st.text(max_size=60), st.text("0123456789+-*/(),lcmgd .e_", max_size=60)))
def test_no_text_raises(text):
    reply = Calculator()(text)
    if reply.error:
        assert reply.text in ERRORS
    else:
        assert re.fullmatch(r"-?[0-9]{1,8}", reply.text)
        assert len(reply.text) <= 8


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("73+15+43", "131"),
        (" 2 * ( 3 - 10 ) ", "-14"),
        ("--2", "2"),
        ("2--3*-4", "-10"),
        ("-7//2", "-4"),
        ("84/2/7", "6"),
        ("lcm(7,35)", "35"),
        ("lcm(4, 6, 10)", "60"),
        ("lcm(0,5)", "0"),
        ("gcd(-12,18)", "6"),
        ("gcd(lcm(4,6),9)", "3"),
        ("007", "7"),
        ("99999999", "99999999"),
    ],
)
def test_results_are_plain_integers(text, reply):
    assert Calculator()(text) == ToolReply(reply, error=False)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "syntax error"),
        ("1+", "syntax error"),
        ("1 2", "syntax error"),
        ("+1", "syntax error"),
        ("()", "syntax error"),
        ("(1", "syntax error"),
        ("1)", "syntax error"),
        ("(1,2)", "syntax error"),
        ("lcm", "syntax error"),
        ("lcm()", "syntax error"),
        ("lcm(1,)", "syntax error"),
        ("lcm7", "syntax error"),
        ("1.5", "syntax error"),
        ("1e9", "syntax error"),
        ("2**9", "syntax error"),
        ("1_000", "syntax error"),
        ("٣+1", "syntax error"),
        ("__import__('os')", "syntax error"),
        ("1/0", "division by zero"),
        ("1//(2-2)", "division by zero"),
        ("7/2", "not an integer"),
        ("9*" * 20 + "9", "too long"),
        ("9999*99999", "too large"),
        ("(" * 13 + "1" + ")" * 13, "too deep"),
    ],
)
def test_failures_are_short_texts(text, error):
    assert Calculator()(text) == ToolReply(error, error=True)


def test_nesting_depth_is_limited_and_length_alone_is_not():
    assert large("(" * 11 + "1" + ")" * 11).text == "1"
    assert large("(" * 1900 + "1" + ")" * 1900).text == "too deep"
    assert large("-" * 3999 + "1").text == "-1"
    assert large("9" * 4000).text == "9" * 4000


def test_limits_out_of_range():
    for name in ("max_length", "max_digits"):
        for value in (0, 4001):
            with pytest.raises(InvalidInputError, match=f"{name} is {value}"):
                Calculator(**{name: value})
