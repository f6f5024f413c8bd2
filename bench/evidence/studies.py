"""The studies: which runs each one has."""

from __future__ import annotations

from typing import Any

import claims
import controls
import pilot
import records
from records import Run

from agentrl_core import recipes

SCREENED = ("chain", "quest")
"""Worlds of the screening, in order."""


def plan(name: str) -> tuple[list[Run], dict[str, Any]]:
    """Return the runs of a study in order, and what all its records hold besides.

    Raises:
        ValueError: there is no such study; a claim has no detectable effect yet or is not committed; or the code has
            changes that are not.
    """
    if name == "pilot":
        return pilot.runs(), {}
    if name == "controls":
        return controls.runs(), {}
    if name == "screening":
        names = recipes.names()
        return [Run(world, arm, seed) for world in SCREENED for seed in pilot.SEEDS for arm in names], {}
    if not (claims.FOLDER / f"{name}.toml").is_file():
        known = ", ".join(["pilot", "controls", "screening", *(claim.name for claim in claims.all_claims())])
        raise ValueError(f"study: {name!r} is none; there are {known}")
    claim = claims.load(name)
    if not claim.detectable_effect:
        raise ValueError(f"claim {name!r}: detectable_effect is 0; run the pilot, then bench/evidence/pilot.py")
    claims.commit_of(claim)
    if "changes" in records.version():
        raise ValueError(f"claim {name!r}: {', '.join(records.SOURCES)} have changes; commit them before its runs")
    return claim.runs(), {"claim": claim.digest}


def file_of(name: str) -> str:
    """Return the name of a study's records."""
    return name if name in ("pilot", "controls", "screening") else f"claims/{name}"
