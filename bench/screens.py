"""Screens of a task of MiniWoB, recorded once with `env.MiniWoB`, and an environment that answers clicks on them."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from agentrl_core import env

TASK = "click-test-2"
SIDE = 80
"""Pixels of a recorded screen: the page below its yellow header, at half the size."""
CELLS = 8
"""Columns and rows of the grid that an action names."""
_LEFT, _TOP, _PAGE = 0, 50, 160
_BUTTON = re.compile(r'"(ONE|TWO)" \((\d+), (\d+), (\d+), (\d+)\)')


def record(path: Path, *, train: int, held_out: int) -> None:
    """Write screenshots and the boxes of both buttons for tasks of both splits into a file.

    Args:
        path: of the file; one that is there is kept.
        train: number of training tasks.
        held_out: number of held-out tasks.
    """
    from PIL import Image

    if path.exists():
        return
    world = env.MiniWoB(TASK, observation="both", held_out=held_out)
    columns: dict[str, list[Any]] = {"seed": [], "screen": [], "boxes": []}
    for task in [*world.tasks(train), *world.tasks(held_out, split="held_out")]:
        episode = world.reset(task, 0)
        text, screenshot = episode.observation["content"]  # type: ignore[index, call-overload]
        boxes = {name: [int(edge) for edge in box] for name, *box in _BUTTON.findall(text)}
        picture = Image.open(io.BytesIO(screenshot.content)).convert("RGB")
        picture = picture.crop((_LEFT, _TOP, _LEFT + _PAGE, _TOP + _PAGE)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        columns["seed"].append(task.payload["seed"])  # type: ignore[call-overload, index]
        columns["screen"].append(np.asarray(picture))
        columns["boxes"].append([boxes["ONE"], boxes["TWO"]])
        episode.close()
    world.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".part.npz")
    np.savez_compressed(half, train=train, **{name: np.array(values) for name, values in columns.items()})
    half.rename(path)
