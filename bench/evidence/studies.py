"""The studies: which runs each one has."""

from __future__ import annotations

from typing import Any

import claims
import controls
import records
from records import Run
from worlds import WORLDS

from agentrl_core import recipes

PILOT_SEEDS = (100, 101, 102)
"""Of the pilot and the screening: none of a claim or a control."""


SCREENED = ("chain", "quest")
"""Worlds of the screening, in order."""


def plan(name: str) -> tuple[list[Run], dict[str, Any]]:
    """Return the runs of a study in order, and what all its records hold besides.

    Raises:
        ValueError: there is no such study; a claim is not committed, or the code has changes that are not.
    """
    if name == "pilot":
        arms = ("grpo", "grpo+1")
        return [Run(world, arm, seed) for world in WORLDS for seed in PILOT_SEEDS for arm in arms], {}
    if name == "controls":
        return controls.runs(), {}
    if name == "screening":
        names = recipes.names()
        return [Run(world, arm, seed) for world in SCREENED for seed in PILOT_SEEDS for arm in names], {}
    if not (claims.FOLDER / f"{name}.toml").is_file():
        known = ", ".join(["pilot", "controls", "screening", *(claim.name for claim in claims.all_claims())])
        raise ValueError(f"study: {name!r} is none; there are {known}")
    claim = claims.load(name)
    claims.commit_of(claim)
    if "changes" in records.version():
        raise ValueError(f"claim {name!r}: {', '.join(records.SOURCES)} have changes; commit them before its runs")
    return claim.runs(), {"claim": claim.digest}


def file_of(name: str) -> str:
    """Return the name of a study's records."""
    return name if name in ("pilot", "controls", "screening") else f"claims/{name}"
