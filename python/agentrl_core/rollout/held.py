"""Weak references from what is kept to what keeps it, so that a group that is over leaves memory at once."""

from __future__ import annotations

from typing import TypeVar
from weakref import ReferenceType

from agentrl_core.exceptions import InvalidInputError

Value = TypeVar("Value")


def held(reference: ReferenceType[Value], what: str) -> Value:
    """What a weak reference leads to, as long as somebody holds it.

    Args:
        reference: to what holds whoever has the reference: with a strong one, both would stay in memory until Python
            looks for cycles, and with them all that was sampled.
        what: it leads to, for the message.

    Raises:
        InvalidInputError: nobody holds it any more.
    """
    value = reference()
    if value is None:
        raise InvalidInputError(f"{what} is gone, since nobody holds it; hold it as long as its parts are asked for it")
    return value
