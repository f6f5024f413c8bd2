"""The worlds by name, with settings from the pilot: noise of demonstrations, steps of the warm start, budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tiny_model
from babyai import BabyAI
from chain import Chain
from clicks import Clicks
from largest import Largest
from quest import Quest
from seeing_model import build as build_seeing  # imported by clicks
from textworld_coin import TextWorldCoin
from two_hop import TwoHop

from agentrl_core import engine


@dataclass(frozen=True)
class World:
    """A world and its settings.

    Attributes:
        name: key of records.
        make: builds the environment.
        steps: optimizer steps of the warm start on clean demonstrations, 24 each.
        slip_steps: further ones on demonstrations that slip.
        slips: share of slips in these: the higher, the weaker the warm start.
        budget: generated tokens of a run.
        turn_tokens: most tokens of an action.
        context_tokens: most tokens of an episode.
        tasks: training tasks to choose from.
        held_out: held-out tasks of an evaluation.
        pretrained: folder of a model to start from, seen from the clone's root, instead of a warm start.
        rate: factor of the learning rates of all arms.
        build: builds a model with random weights, and its tokenizer or processor, from the world's words and a seed.
    """

    name: str
    make: Callable[[], Any]
    steps: int
    slip_steps: int
    slips: float
    budget: int
    turn_tokens: int
    context_tokens: int
    tasks: int = 2048
    held_out: int = 160
    pretrained: str = ""
    rate: float = 1.0
    build: Callable[[Sequence[str], int], tuple[Any, Any]] = tiny_model.build

    @property
    def sampling(self) -> engine.Sampling:
        """Sampling of every action."""
        return engine.Sampling(max_tokens=self.turn_tokens)


WORLDS = {
    world.name: world
    for world in (
        World("chain", Chain, steps=500, slip_steps=80, slips=0.25, budget=30_000, turn_tokens=5, context_tokens=160),
        World(
            "quest",
            Quest,
            steps=400,
            slip_steps=50,
            slips=0.35,
            budget=45_000,
            turn_tokens=3,
            context_tokens=300,
            tasks=256,
            held_out=96,
        ),
        World(
            "two_hop",
            TwoHop,
            steps=400,
            slip_steps=60,
            slips=0.4,
            budget=40_000,
            turn_tokens=5,
            context_tokens=160,
            tasks=288,
        ),
        World(
            "textworld",
            TextWorldCoin,
            steps=400,
            slip_steps=40,
            slips=0.4,
            budget=40_000,
            turn_tokens=3,
            context_tokens=256,
            tasks=96,
            held_out=64,
        ),
        World(
            "babyai",
            BabyAI,
            steps=400,
            slip_steps=40,
            slips=0.3,
            budget=50_000,
            turn_tokens=3,
            context_tokens=384,
            held_out=96,
        ),
        World(
            "largest",
            Largest,
            steps=0,
            slip_steps=0,
            slips=0.5,
            budget=4_000,
            turn_tokens=5,
            context_tokens=128,
            held_out=64,
            pretrained="target/smollm2",
            rate=1 / 15,
        ),
        World(
            "clicks",
            Clicks,
            steps=400,
            slip_steps=40,
            slips=0.4,
            budget=50_000,
            turn_tokens=3,
            context_tokens=96,
            tasks=8192,
            held_out=256,
            rate=1.5,
            build=build_seeing,
        ),
    )
}
