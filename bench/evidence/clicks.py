"""Click a button from pixels: a drawn page with two buttons, answered by a cell of its grid."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from teachable import FACTS, Turns, checked

from agentrl_core import env
from agentrl_core.env.png import encode_png

# The grid is that of the screen demo, so that its model also plays here.
sys.path.append(str(Path(__file__).parents[1]))
from screens import CELLS, QUESTION, SIDE

_TASKS = 100_000
_CELL = SIDE // CELLS
_LEAST, _MOST = 13, 24
"""Pixels of a side of a button; a cell has 10. Each button contains the centre of a cell, and has room for its name."""
_PAGE, _BORDER = 250, 90
_SHADES = (150, 210)
_LETTERS = {
    "ONE": ("### #..# ###", "#.# ##.# #..", "#.# #.## ##.", "#.# #..# #..", "### #..# ###"),
    "TWO": ("### #...# ###", ".#. #...# #.#", ".#. #.#.# #.#", ".#. ##.## #.#", ".#. #...# ###"),
}
Box = tuple[int, int, int, int]


class Clicks:
    """Pages of 80 by 80 pixels with a button ONE and a button TWO, of random sizes at random places, apart.

    An action is the column and the row of a cell of 8 by 8, such as `3 5`. The reward is 1 if its centre is on ONE.

    Args:
        held_out: number of held-out tasks; there are 100 000 for training.
    """

    runs: ClassVar = "inline"
    facts: ClassVar = FACTS
    words: ClassVar = (QUESTION, *map(str, range(CELLS)))

    def __init__(self, *, held_out: int = 512) -> None:
        self._limits = {"train": _TASKS, "held_out": held_out}

    def tasks(self, count: int, *, split: env.base.Split = "train", start: int = 0) -> list[env.Task]:
        """Return tasks of a split, each made of its number."""
        return [self._task(split, number) for number in checked(start, count, self._limits[split])]

    def _task(self, split: str, number: int) -> env.Task:
        rng = random.Random(f"{split} {number}")  # noqa: S311 -- a task, no secret
        one, two = _button(rng), _button(rng)
        while one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]:
            two = _button(rng)
        return env.Task(f"clicks/{split}/{number}", QUESTION, "clicks", {"buttons": [list(one), list(two)]})

    def reset(self, task: env.Task, seed: int) -> Click:
        """Show the page of a task."""
        del seed
        payload: Any = task.payload
        return Click(*(tuple(box) for box in payload["buttons"]))


class Click(Turns):
    """One click."""

    def __init__(self, one: Box, two: Box) -> None:
        super().__init__(1)
        self._one, self._two = one, two
        page = env.Image(encode_png(draw_page(one, two)))
        self.observation: Any = {"role": "user", "content": [page, QUESTION]}

    def step(self, action: str) -> env.StepResult:
        """Score the click."""
        found = re.fullmatch(r"([0-7]) ([0-7])", action)
        if found is None:
            return self.refused("")
        return self.ended(success=bool(cells(self._one)[int(found[1]), int(found[2])]))

    def state_key(self) -> bytes:
        """Return the buttons."""
        return f"{self._one} {self._two}".encode()

    def best(self) -> str:
        """Return the cell of ONE whose centre is nearest to its own."""
        columns, rows = (int((self._one[axis] + self._one[axis + 2]) / 2 / _CELL) for axis in range(2))
        return f"{columns} {rows}"

    def slip(self, rng: random.Random) -> str:
        """Return a cell of the other button."""
        return "{} {}".format(*rng.choice(np.argwhere(cells(self._two)).tolist()))


def cells(box: Box) -> NDArray[np.bool_]:
    """Return which cells have their centre in a box, `bool[column, row]`."""
    centres = (np.arange(CELLS) + 0.5) * _CELL
    across, down = ((box[axis] <= centres) & (centres < box[axis + 2]) for axis in range(2))
    inside: NDArray[np.bool_] = across[:, None] & down
    return inside


def draw_page(one: Box, two: Box) -> NDArray[np.uint8]:
    """Return the pixels of a page."""
    page = np.full((SIDE, SIDE, 3), _PAGE, np.uint8)
    for (left, top, right, bottom), shade, name in zip((one, two), _SHADES, _LETTERS, strict=True):
        page[top:bottom, left:right] = _BORDER
        page[top + 1 : bottom - 1, left + 1 : right - 1] = shade
        ink = np.array([[mark == "#" for mark in row] for row in _LETTERS[name]])
        y, x = top + (bottom - top - len(ink)) // 2, left + (right - left - ink.shape[1]) // 2
        page[y : y + len(ink), x : x + ink.shape[1]][ink] = 0
    return page


def _button(rng: random.Random) -> Box:
    width, height = rng.randint(_LEAST, _MOST), rng.randint(_LEAST, _MOST)
    left, top = rng.randint(0, SIDE - width), rng.randint(0, SIDE - height)
    return left, top, left + width, top + height
