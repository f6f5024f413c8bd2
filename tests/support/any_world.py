"""An environment that reports every fact a recipe needs, drawn from a seed.

Texts are those of `riddles`. Rewards and facts of an episode depend only on its task, its seed and its actions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from riddles import RIGHT, TOKENIZER, WRONG

from agentrl_core import engine
from agentrl_core.component.component import PHASES, Component
from agentrl_core.component.requirements import required_facts
from agentrl_core.engine import Request
from agentrl_core.engine.base import TopLogprobs
from agentrl_core.engine.scripted import ScriptedReply
from agentrl_core.env import ExtraColumn, StepFlag, StepResult, Task
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.ss_orl import ImputedActions
from agentrl_core.rollout import SelfPlay

AGENTS = ("first", "second", "monitor")
"""Roles of the agents that act in programs with several agents."""


def facts(recipe: Recipe) -> dict[str, ExtraColumn]:
    """Return what an environment has to declare for a recipe."""
    needed = required_facts({phase: recipe.chain(phase) for phase in PHASES})
    return {column.name: ExtraColumn("trajectory" if column.level == "draw" else "step") for column in needed}


def chance(*key: object) -> float:
    """Return a number in [0, 1) that depends only on a key."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=4).digest(), "little") / 2**32


class AnyEpisode:
    """An episode of one player."""

    def __init__(self, world: AnyWorld, task: Task, seed: int) -> None:
        self.observation: Any = task.question
        self._world, self._key = world, (task.task_id, seed)
        self._actions: list[str] = []

    def step(self, action: str) -> StepResult:
        self._actions.append(action)
        step_facts = self._world.facts_after(*self._key, *self._actions, step=len(self._actions))
        pay = round(chance("pay", *self._key, *self._actions), 1) / 20
        if "<answer>" in action or len(self._actions) > 3:
            right = RIGHT in action
            return StepResult(reward=0.8 * right + pay, terminated=True, success=right, facts=step_facts)
        failed = "<bad>" in action
        flags = StepFlag.TOOL_RESULT | (StepFlag.TOOL_ERROR if failed else 0)
        return StepResult("error" if failed else "go on", reward=pay, flags=flags, facts=step_facts)

    def state_key(self) -> bytes:
        return repr(self._actions).encode()


class AnyGame:
    """An episode of players who move in turn, twice each. The first player is the spy; the others win what it loses."""

    def __init__(self, world: AnyWorld, task: Task, seed: int) -> None:
        self.players = world.players
        self.observations = {player: f"{task.question} {player}" for player in self.players}
        self._world, self._key = world, (task.task_id, seed)
        self._actions: list[str] = []

    def turn_of(self) -> Sequence[str]:
        return [self._next] if len(self._actions) < self._moves else []

    @property
    def _moves(self) -> int:
        return 2 * len(self.players)

    @property
    def _next(self) -> str:
        return self.players[len(self._actions) % len(self.players)]

    def step(self, actions: Mapping[str, str]) -> Mapping[str, StepResult]:
        ((player, action),) = actions.items()
        self._actions.append(action)
        step_facts = self._world.facts_after(*self._key, player, *self._actions, step=len(self._actions))
        step_facts |= {"spy": float(player == self.players[0])} if "spy" in step_facts else {}
        if len(self._actions) < self._moves:
            pay = round(chance("pay", *self._key, *self._actions), 1)
            return {player: StepResult(reward=pay, facts=step_facts), self._next: StepResult("go on")}
        first = float(chance(*self._key, *self._actions) < 0.5)
        ends = [(name, first if name == self.players[0] else 1 - first) for name in self.players]
        return {
            name: StepResult(
                reward=won, terminated=True, success=won == 1.0, facts=step_facts if name == player else None
            )
            for name, won in ends
        }

    def state_key(self) -> bytes:
        return repr(self._actions).encode()


class AnyTasks(list[Task]):
    """Tasks with the columns that phase select names."""

    columns: dict[str, np.ndarray]


class AnyWorld:
    """The world of a recipe."""

    runs = "inline"

    def __init__(self, recipe: Recipe) -> None:
        self.facts = facts(recipe)
        self.players = recipe.rollout.agents if isinstance(recipe.rollout, SelfPlay) else ()
        self.column_names = tuple(_texts(recipe.select))
        self.half_recorded = isinstance(recipe.rollout, ImputedActions)

    def facts_after(self, *key: object, step: int) -> dict[str, float]:
        """Return the facts of an episode after a step: 0 or 1 by a seed, except if only other numbers make sense."""
        facts = {name: float(chance(name, *key) < 0.5) for name in self.facts}
        sensible = {"turn": float(step), "image_width": 2.0, "image_height": 2.0}
        sensible |= {name: 0.0 for name in facts if name.startswith("item_needs")}
        return {name: sensible.get(name, value) for name, value in facts.items()}

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        numbers = range(start, start + count)
        tasks = AnyTasks(
            Task(f"{split} {number}", f"{number}?", ("even", "odd")[number % 2], None, self.solution(number))
            for number in numbers
        )
        tasks.columns = {name: np.array([chance(name, number) for number in numbers]) for name in self.column_names}
        if "embedding" in tasks.columns:
            tasks.columns["embedding"] = np.array([[chance(place, number) for place in range(2)] for number in numbers])
        return tasks

    def solution(self, number: int) -> tuple[str, ...]:
        """Return recordings; every other one has no actions."""
        return () if self.half_recorded and number % 2 else ("look", RIGHT)

    def reset(self, task: Task, seed: int) -> AnyEpisode | AnyGame:
        return AnyGame(self, task, seed) if self.players else AnyEpisode(self, task, seed)


def _texts(component: Component) -> list[str]:
    """Return the texts among the options of a component and of nested components; column names are among them."""
    texts: list[str] = []
    for value in vars(component).values():
        if isinstance(value, Component):
            texts += _texts(value)
        elif isinstance(value, str) and value != "domain":
            texts.append(value)
    return texts


SAYINGS = ("look", "<bad>", WRONG, RIGHT, RIGHT, "see", WRONG, "go")
ANSWERS = {
    "`number: text`": "1: see",
    "<question></question>": "<question>why?</question>",
    "What is known:": RIGHT,
}
"""Answers to prompts that contain these words."""


class Speaker(engine.Scripted):
    """An engine that samples one of a few texts by the seed, with log-probs like those of an untrained model.

    Half of the texts have a high log-prob. If a request asks for likely tokens, the sampled one is the likeliest.
    """

    def __init__(self, tokenizer: Any = TOKENIZER) -> None:
        super().__init__(tokenizer, self._reply)
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        self._surprise = float(np.log(len(self._tokenizer)))

    def _reply(self, request: Request) -> ScriptedReply:
        rng = np.random.default_rng(request.seed)
        context = self._tokenizer.decode(request.tokens)
        fitting = (answer for words, answer in ANSWERS.items() if words in context)
        reply = next(fitting, SAYINGS[int(rng.integers(len(SAYINGS)))])
        if "<question>" in reply and "go on" not in context:
            reply = "look"  # no text was read that could answer the question
        count = len(self.chat.action(reply))
        noise = 0.1 * rng.standard_normal(count)
        entropies = rng.random(count) * rng.choice([0.5, self._surprise])
        return ScriptedReply(reply, (noise - self._surprise).tolist(), entropies.tolist())

    async def generate(self, request: Request) -> engine.Segment:
        segment = await super().generate(request)
        places = np.arange(request.sampling.top, dtype=np.int32)
        if not len(places):
            return segment
        tokens = (segment.tokens[:, None] + places) % 256
        logprobs = np.tile(-1.0 - 0.1 * places, (len(tokens), 1)).astype(np.float32)
        return replace(segment, top=TopLogprobs(tokens, logprobs))
