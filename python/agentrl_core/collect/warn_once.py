"""Warnings of a collection, each kind once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core.component.controller import MISSED
from agentrl_core.exceptions import AgentRLWarning

if TYPE_CHECKING:
    from agentrl_core.collect.rollout_log import IterationLog
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
            which = "which" if len(controller.reads) == 1 else "one of which"
            notices.once(
                f"controller {place}",
                f"{controller.title()} at {place} reads {', '.join(controller.reads)}, {which} was missing or NaN in "
                "the metrics of an iteration, so the controller did not change; pass the metric to "
                "Collector.end_iteration",
            )


def warn_unused_records(notices: WarnOnce, log: IterationLog) -> None:
    """Warn of recorded results that a resumed iteration did not request again."""
    unused = log.unused
    notices.once(
        "rollout log",
        f"{len(unused)} of {len(log)} recorded answers were not used after the resume (the first: "
        f"{unused[0]}): the program, the recipe or an engine has changed, or the program is not deterministic "
        "(it reads the clock or its own random numbers); the others were sampled again, and tokens that the "
        "iteration's groups do not use are stored without draws",
    )
