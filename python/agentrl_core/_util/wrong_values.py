"""Find and show the wrong entry of a column, for messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

import numpy as np


def first_wrong(values: Iterable[Any], is_good: Callable[[Any], bool]) -> int | None:
    """Return the place of the first value that is not good, or None if all are.

    Example:
        >>> from agentrl_core._util.wrong_values import first_wrong, is_number
        >>> first_wrong([0.5, None, "x"], is_number)
        1
    """
    return next((place for place, value in enumerate(values) if not is_good(value)), None)


def is_number(value: object, kinds: str = "biuf") -> bool:
    """Return whether a value is a real number or a boolean whose NumPy dtype is of one of the given `kinds`.

    Example:
        >>> from fractions import Fraction
        >>> from agentrl_core._util.wrong_values import is_number
        >>> is_number(2**64 - 1), is_number(2**64), is_number(Fraction(1, 2)), is_number(0.5, "iu")
        (True, False, False, False)
    """
    return isinstance(value, (Real, np.bool_)) and np.asarray(value).dtype.kind in kinds


def shown(value: object, length: int = 40) -> str:
    """Return the start of a value's `repr`, with a NumPy scalar as a Python value.

    Example:
        >>> import numpy as np
        >>> from agentrl_core._util.wrong_values import shown
        >>> shown(np.float64(1.5)), shown("a" * 9, 5), shown(10**5000)
        ('1.5', "'aaaa", 'int with too many digits to print')
    """
    try:
        return repr(value.item() if isinstance(value, np.generic) else value)[:length]
    except ValueError:  # Python prints at most 4300 digits
        return f"{type(value).__name__} with too many digits to print"
