"""Iterations of a recipe whose observations are images, with a tiny vision-language model."""

from __future__ import annotations

import copy
import functools
import tempfile
from dataclasses import dataclass, replace
from typing import Any

import torch
from any_world import AnyEpisode, AnyGame, AnyWorld, Speaker
from recipe_loop import Loop, names
from torch import nn
from vision_models import build, screenshot

from agentrl_core.env import StepResult, Task


@functools.cache
def processor() -> Any:
    """Return the processor of all models here."""
    return build("smolvlm")[1]


@functools.cache
def folder() -> str:
    """Return the folder in which that processor is saved, as with a checkpoint."""
    path = tempfile.mkdtemp()
    processor().save_pretrained(path)
    return path


@functools.cache
def seeing_model(seed: int) -> Any:
    """Return a vision-language model with a value head, one for each seed."""
    network = build("smolvlm", seed)[0]
    network.name_or_path = folder()
    network.value_head = nn.Linear(network.config.text_config.hidden_size, 1)
    return network


def with_image(text: Any, number: int, role: str = "user") -> Any:
    """Return a text with an image."""
    return {"role": role, "content": [screenshot(number, 32, 32), str(text)]}


class SeeingEpisode:
    """An episode of one player, who sees an image before each action."""

    def __init__(self, episode: AnyEpisode, number: int) -> None:
        self.observation = with_image(episode.observation, number)
        self._episode, self._number = episode, number

    def step(self, action: str) -> StepResult:
        self._number += 1
        result = self._episode.step(action)
        if result.observation is None:
            return result
        return replace(result, observation=with_image(result.observation, self._number))

    def state_key(self) -> bytes:
        return self._episode.state_key()


class SeeingGame:
    """A game of several players, each of whom sees an image first; the spy, who acts first, sees another one."""

    def __init__(self, game: AnyGame, number: int) -> None:
        self.observations = {
            player: with_image(text, number + (place == 0))
            for place, (player, text) in enumerate(game.observations.items())
        }
        self.turn_of, self.step, self.state_key = game.turn_of, game.step, game.state_key


class SeeingWorld(AnyWorld):
    """The environment of a recipe, with images."""

    def reset(self, task: Task, seed: int) -> Any:
        episode = super().reset(task, seed)
        number = int(task.task_id.split()[1]) * 10
        return SeeingGame(episode, number) if isinstance(episode, AnyGame) else SeeingEpisode(episode, number)


@dataclass
class SeeingLoop(Loop):
    """A run of a recipe with vision-language models."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.models = {name: copy.deepcopy(seeing_model(place)) for place, name in enumerate(names(self.recipe))}
        self.optimizers = {name: torch.optim.SGD(each.parameters(), lr=0.05) for name, each in self.models.items()}
        self.world = SeeingWorld(self.recipe)

    def speaker(self) -> Any:
        return Speaker(processor())
