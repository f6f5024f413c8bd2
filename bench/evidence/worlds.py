"""The worlds by name, with what the pilot chose for each: noise of demonstrations, steps of the warm start, budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chain import Chain
from quest import Quest
from two_hop import TwoHop

from agentrl_core import engine


@dataclass(frozen=True)
class World:
    """A world and its settings.

    Attributes:
        name: key of records.
        make: makes the environment.
        slips: share of slips in demonstrations: the higher, the weaker the warm start.
        steps: optimizer steps of the warm start, on 24 demonstrations each.
        budget: generated tokens of a run.
        turn_tokens: most tokens of an action.
        context_tokens: most tokens of an episode.
        tasks: training tasks to choose from.
        held_out: held-out tasks of an evaluation.
    """

    name: str
    make: Callable[[], Any]
    slips: float
    steps: int
    budget: int
    turn_tokens: int
    context_tokens: int
    tasks: int = 2048
    held_out: int = 192

    @property
    def sampling(self) -> engine.Sampling:
        """Sampling of every action."""
        return engine.Sampling(max_tokens=self.turn_tokens)


WORLDS = {
    world.name: world
    for world in (
        World("chain", Chain, slips=0.3, steps=500, budget=60_000, turn_tokens=5, context_tokens=160),
        World("quest", Quest, slips=0.5, steps=400, budget=60_000, turn_tokens=4, context_tokens=400),
        World(
            "two_hop",
            TwoHop,
            slips=0.5,
            steps=400,
            budget=40_000,
            turn_tokens=5,
            context_tokens=160,
            tasks=288,
        ),
    )
}
