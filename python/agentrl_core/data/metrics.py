"""Metrics of an iteration as numbers by name."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real

import numpy as np

from agentrl_core._util.json_text import is_unicode
from agentrl_core.exceptions import InvalidInputError


def flatten_metrics(metrics: object) -> dict[str, float]:
    """Return the numbers of a table of metrics by name, with dots for nested tables; other values are left out.

    Raises:
        InvalidInputError: a name is not Unicode, or a number is beyond the largest float.

    Example:
        >>> from agentrl_core.data.metrics import flatten_metrics
        >>> flatten_metrics({"loss": 0.5, "critic": {"loss": 1}, "note": "text"})
        {'loss': 0.5, 'critic.loss': 1.0}
    """
    found: dict[str, float] = {}
    _flatten(metrics, "", found)
    if not is_unicode("".join(found)):
        wrong = next(name for name in found if not is_unicode(name))
        raise InvalidInputError(f"metrics: name {wrong!r} is not Unicode; give another")
    return found


def _flatten(metrics: object, before: str, found: dict[str, float]) -> None:
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        if isinstance(value, Mapping):
            _flatten(value, f"{before}{name}.", found)
        elif isinstance(value, (Real, np.number)) and not isinstance(value, bool):
            try:
                found[f"{before}{name}"] = float(value)
            except OverflowError:
                raise InvalidInputError(
                    f"metrics: {name!r} is {str(value)[:40]}…, beyond the largest float; give a smaller number"
                ) from None
