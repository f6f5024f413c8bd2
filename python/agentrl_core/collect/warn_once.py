"""Warnings of a collection, each kind once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core.component.controller import MISSED
from agentrl_core.exceptions import AgentRLWarning

if TYPE_CHECKING:
    from agentrl_core.collect.journal import Journal
    from agentrl_core.recipe import Recipe


class WarnOnce:
    """Warnings that are issued once each, over all trajectories and iterations."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def once(self, kind: str, message: str) -> None:
        """Warn (`AgentRLWarning`), unless something of this kind was reported before."""
        if kind not in self._given:
            self._given.add(kind)
            warnings.warn(message, AgentRLWarning, stacklevel=2)


def warn_missed_metrics(notices: WarnOnce, recipe: Recipe, components: Mapping[str, Any]) -> None:
    """Warn of controllers whose metric was missing or NaN."""
    for place, controller in recipe.controllers.items():
        if components.get(place, {}).get(MISSED):
            notices.once(
                f"controller {place}",
                f"{controller.title()} at {place} follows {', '.join(controller.reads)}, which the metrics of an "
                "iteration lacked or had as NaN: it stays where it is then; give the metric to Collector.end_iteration",
            )


def warn_unused_records(notices: WarnOnce, journal: Journal) -> None:
    """Warn of journal records that were not requested again, because the programs changed since the interruption."""
    unasked = journal.unasked
    if unasked:
        notices.once(
            "journal",
            f"{len(unasked)} of {len(journal)} recorded answers were not asked for again (the first: "
            f"{unasked[0]}): the program, the recipe or an engine has changed since then, or the program is not "
            "orderly (the clock, random numbers of its own); what does not fit was sampled anew, and what had been "
            "sampled for a group of the iteration is kept in it undrawn",
        )
