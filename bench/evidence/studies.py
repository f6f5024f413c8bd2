"""The studies and their runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import claims
import controls
import pilot
import records
from records import Run
from scores import improves

from agentrl_core import recipes
from agentrl_core.recipe import Recipe

ALONE = ("pilot", "controls", "screening", "screening_slow")
"""Studies that are not claims."""
SCREENED = ("chain",)
"""Worlds of the screening. The other worlds support no recipe that this one refuses."""
SLOWEST = "@slow@slow@slow"
"""End of the names of arms with a sixty-fourth of the learning rate."""
SLOW_RATES = {"@slow": "a quarter of the rate", SLOWEST: "a sixty-fourth"}
"""Ends of the names of arms of `screening_slow`, with the learning rate in words."""
MANY_STEPS = 100
"""Optimizer steps of a batch above which a recipe also runs at a sixty-fourth of the rate."""


def plan(name: str) -> tuple[list[Run], dict[str, Any]]:
    """Return the runs of a study in order, and fields common to all of its records.

    Raises:
        ValueError: there is no such study; a claim has no detectable effect yet or is not committed; or the code has
        uncommitted changes.
    """
    if name == "pilot":
        return pilot.runs(), {}
    if name == "controls":
        return controls.runs(), {}
    if name == "screening":
        names = recipes.names()
        return [Run(world, arm, seed) for world in SCREENED for seed in pilot.SEEDS for arm in names], {}
    if name == "screening_slow":
        return [*_slow(records.study("screening")), *_slowest(records.study(name))], {}
    if not (claims.FOLDER / f"{name}.toml").is_file():
        known = ", ".join([*ALONE, *(claim.name for claim in claims.all_claims())])
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
    return name if name in ALONE else f"claims/{name}"


def _slow(screened: Iterable[dict[str, Any]]) -> list[Run]:
    """Return runs at a quarter of the learning rate: of recipes with several steps a batch that do not improve."""
    world_arms = [(world, arm) for world, arm in _unimproved(screened) if steps_of_batch(recipes.get(arm)) > 1]
    return [Run(world, f"{arm}@slow", seed) for seed in pilot.SEEDS for world, arm in world_arms]


def _slowest(slow: Iterable[dict[str, Any]]) -> list[Run]:
    """Return runs at a sixty-fourth of the rate: of recipes with many steps that do not improve at a quarter of it."""
    quarter = [{**each, "arm": each["arm"].removesuffix("@slow")} for each in slow if not each["arm"].endswith(SLOWEST)]
    world_arms = [(world, arm) for world, arm in _unimproved(quarter) if steps_of_batch(recipes.get(arm)) > MANY_STEPS]
    return [Run(world, f"{arm}{SLOWEST}", seed) for seed in pilot.SEEDS for world, arm in world_arms]


def _unimproved(study: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the worlds and recipes of finished runs that do not improve, by world and name."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for each in study:
        if each["status"] == "done":
            runs[each["world"], each["arm"]].append(each)
    return [
        (world, arm)
        for world in SCREENED
        for arm in recipes.names()
        if (world, arm) in runs and not improves(runs[world, arm])
    ]


def steps_of_batch(recipe: Recipe) -> int:
    """Return the number of optimizer steps of a batch, of all models."""
    trainings: list[Any] = [each.at(0) for each in recipe.losses()]
    return sum(int(each.epochs) * int(each.minibatches) for each in trainings)
