"""The table of causal model types: which layouts were verified for each, made by bench/causal_types.py."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

_FILE = "causal_types.json"


@functools.cache
def causal_types() -> dict[str, dict[str, Any]]:
    """Return the entry of each model type, by `config.model_type`."""
    text = resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    types: dict[str, dict[str, Any]] = json.loads(text)["types"]
    # Of composite types the text model alone was built; the composite itself is not verified.
    return {kind: entry for kind, entry in types.items() if entry.get("model_type") == kind}


def entry_of(kind: str) -> dict[str, Any]:
    """Return the entry of a model type; empty if it is not in the table."""
    return causal_types().get(kind, {})
