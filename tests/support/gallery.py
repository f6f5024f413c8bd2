"""An environment whose observations contain images, and an engine that samples by a script."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

from PIL import Image as Picture
from templates import TEMPLATES, bytes_tokenizer

from agentrl_core import engine
from agentrl_core.engine import Request
from agentrl_core.env import Content, Image, StepResult, Task

TURNS = 3


@cache
def picture(number: int) -> Image:
    """Return a small PNG of one colour."""
    buffer = io.BytesIO()
    Picture.new("RGB", (40, 30), (number % 256, number // 256, 7)).save(buffer, "PNG")
    return Image(buffer.getvalue())


picture(0)  # the first image loads the encoder, which would block the event loop


class Gallery:
    """Tasks `train 0`, `train 1`, …; the task and the actions determine the images.

    Args:
        runs: where episodes run.
    """

    def __init__(self, runs: str = "inline") -> None:
        self.runs = runs

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        return [Task(f"{split} {number}", "?", "gallery", number) for number in range(start, start + count)]

    def reset(self, task: Task, seed: int) -> Viewing:
        del seed
        return Viewing(task.payload)  # type: ignore[arg-type]


class Viewing:
    """Two pictures at first, and one after each action but the last."""

    def __init__(self, task: int) -> None:
        self.task = task
        self.actions: list[str] = []
        self.observation: Content = [
            {"role": "system", "content": "Look."},
            {"role": "user", "content": ("Two:", picture(task), picture(1000 + task), "?")},
        ]

    def next_image(self) -> Image:
        """Return the content of the next observation."""
        return picture(100 * self.task + 10 * len(self.actions) + len(self.actions[-1]))

    def step(self, action: str) -> StepResult:
        self.actions.append(action)
        if len(self.actions) == TURNS:
            return StepResult(reward=float(len(action) % 2), terminated=True, success=True)
        return StepResult({"role": "user", "content": [self.next_image(), "Go on."]})

    def state_key(self) -> bytes:
        return repr((self.task, self.actions)).encode()


def scripted(speaker: Callable[[Request], str] | None = None, chat: Any = None) -> engine.Scripted:
    """Return an engine whose template has a place for images."""

    def reply(request: Request) -> str:
        return "a" * (1 + request.seed % 5) if speaker is None else speaker(request)

    return engine.Scripted(bytes_tokenizer(*TEMPLATES["seeing"]) if chat is None else chat, reply_of(reply))


def reply_of(reply: Callable[[Request], str]) -> Callable[..., str]:
    """Return the images in the form that the engine requests."""

    def function(*, request: Request) -> str:
        return reply(request)

    return function
