"""Screens of a task of MiniWoB, recorded once with `env.MiniWoB`, and an environment that rewards clicks on them."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from agentrl_core import env
from agentrl_core.env.png import encode_png
from agentrl_core.env.screen_action import ScreenAction
from agentrl_core.env.screen_facts import SCREEN_FACTS, ScreenFacts

TASK = "click-test-2"
QUESTION = "ONE"
SIDE = 80
"""Pixels of a recorded screen: the page below its yellow header, at half the size."""
CELLS = 8
"""Columns and rows of the grid of possible clicks."""
_LEFT, _TOP, _PAGE = 0, 50, 160
_BUTTON = re.compile(r'"(ONE|TWO)" \((\d+), (\d+), (\d+), (\d+)\)')


def record(path: Path, *, train: int, held_out: int) -> None:
    """Write screenshots and the boxes of both buttons for tasks of both splits into a file, with the recording time.

    Args:
        path: of the file; an existing one is kept.
        train: number of training tasks.
        held_out: number of held-out tasks.
    """
    from PIL import Image

    if path.exists():
        return
    begin = time.perf_counter()
    world = env.MiniWoB(TASK, observation="both", held_out=held_out)
    columns: dict[str, list[Any]] = {"seed": [], "screen": [], "boxes": []}
    for task in [*world.tasks(train), *world.tasks(held_out, split="held_out")]:
        episode = world.reset(task, 0)
        text, screenshot = episode.observation["content"]  # type: ignore[index, call-overload]
        boxes = {name: [int(edge) for edge in box] for name, *box in _BUTTON.findall(text)}
        picture = Image.open(io.BytesIO(screenshot.content)).convert("RGB")
        picture = picture.crop((_LEFT, _TOP, _LEFT + _PAGE, _TOP + _PAGE)).resize(
            (SIDE, SIDE), Image.Resampling.BILINEAR
        )
        columns["seed"].append(task.payload["seed"])  # type: ignore[call-overload, index]
        columns["screen"].append(np.asarray(picture))
        columns["boxes"].append([boxes["ONE"], boxes["TWO"]])
        episode.close()
    world.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".part.npz")
    arrays = {name: np.array(values) for name, values in columns.items()}
    np.savez_compressed(half, train=train, seconds=time.perf_counter() - begin, **arrays)
    half.rename(path)


class RecordedScreens:
    """Clicks on recorded screens: an action is the column and the row of a cell, such as `3 5`.

    The reward is 1 if the centre of the cell is on button ONE and not covered by button TWO, else 0.

    `seconds` is the duration of the recording.

    Args:
        path: file of `record`.
        shows: `own`: the task's screen; `other`: that of another task; `nothing`: the question alone.
    """

    runs: ClassVar = "inline"
    facts: ClassVar = SCREEN_FACTS

    def __init__(self, path: Path, shows: Literal["own", "other", "nothing"] = "own") -> None:
        with np.load(path) as file:
            self.train, self.screens, self.boxes = int(file["train"]), file["screen"], file["boxes"]
            self.seeds, self.seconds = file["seed"], float(file["seconds"])
        self.shows = shows
        self.images = [env.Image(encode_png(screen)) for screen in self.screens]
        centres = (np.arange(CELLS) + 0.5) * _PAGE / CELLS
        x, y = (centres + _LEFT)[None, :, None], (centres + _TOP)[None, None, :]
        left, top, right, bottom = (self.boxes[:, :, edge, None, None] for edge in range(4))
        # Axes: screen, button, column, row.
        inside = (left <= x[:, None]) & (x[:, None] < right) & (top <= y[:, None]) & (y[:, None] < bottom)
        self.hits = inside[:, 0] & ~inside[:, 1]

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[env.Task]:
        """Return the tasks of a split: one per screen."""
        begin = start + (self.train if split == "held_out" else 0)
        end = min(begin + count, len(self.images) if split == "held_out" else self.train)
        return [env.Task(f"{split}/{place}", QUESTION, TASK, {"screen": place}) for place in range(begin, end)]

    def reset(self, task: env.Task, seed: int) -> Click:
        """Start an episode of one click."""
        del seed
        return Click(self, task.payload["screen"])  # type: ignore[index]

    def prompt(self, place: int) -> env.Content:
        """Return the first observation for a screen."""
        if self.shows == "nothing":
            return QUESTION
        # Screens of the same split, shifted by one.
        first, last = (0, self.train) if place < self.train else (self.train, len(self.images))
        image_place = place if self.shows == "own" else first + (place + 1 - first) % (last - first)
        return {"role": "user", "content": [self.images[image_place], QUESTION]}


class Click:
    """An episode: one click on a screen."""

    def __init__(self, world: RecordedScreens, place: int) -> None:
        self._world, self._place = world, place
        box = tuple(float(edge) for edge in world.boxes[place, 0])
        self._facts = ScreenFacts(_PAGE, _TOP + _PAGE, box)  # type: ignore[arg-type]
        self.observation = world.prompt(place)

    def step(self, action: str) -> env.StepResult:
        """Reward the only action."""
        point = click_of(action)
        if point is None:
            facts = self._facts.of(None, None)
            return env.StepResult(
                reward=0.0, terminated=True, success=False, flags=env.StepFlag.FORMAT_ERROR, facts=facts
            )
        x, y = point
        column, row = int((x - _LEFT) * CELLS / _PAGE), int((y - _TOP) * CELLS / _PAGE)
        hit = bool(self._world.hits[self._place, column, row])
        facts = self._facts.of(ScreenAction("click", (x, y)), (x, y, x, y))
        return env.StepResult(reward=float(hit), terminated=True, success=hit, facts=facts)

    def state_key(self) -> bytes:
        """Return the screen."""
        return str(self._place).encode()


def click_of(action: str) -> tuple[float, float] | None:
    """Return the centre of the cell that an action names; None: it is not a valid action."""
    found = re.fullmatch(r"([0-7]) ([0-7])", action.strip())
    if found is None:
        return None
    return _LEFT + (int(found[1]) + 0.5) * _PAGE / CELLS, _TOP + (int(found[2]) + 0.5) * _PAGE / CELLS
