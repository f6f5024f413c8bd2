"""Values recorded for each screen action, which recipes for user interfaces read."""

from __future__ import annotations

import math
from collections.abc import Mapping

from agentrl_core.env.base import ExtraColumn
from agentrl_core.env.screen_action import ScreenAction
from agentrl_core.env.text_game import GAME_FACTS

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a rectangle of the screen, in pixels."""

_EDGES = ("x1", "y1", "x2", "y2")
_OF_EPISODE = (
    *(f"{name}_{edge}" for name in ("box", "target") for edge in _EDGES),
    "image_width",
    "image_height",
    "task_weight",
    "reward.format",
    "reward.action",
    "reward.argument",
)

SCREEN_FACTS: Mapping[str, ExtraColumn] = {
    **GAME_FACTS,
    **dict.fromkeys(("click_x", "click_y", "matched"), ExtraColumn("step")),
    **dict.fromkeys(_OF_EPISODE, ExtraColumn("trajectory")),
}
"""Facts of an action on a screen; those about the target are missing if the target is not known.

- `points`, `command`: as for games;
- `click_x`, `click_y`: the clicked point; `matched`: 1 if it lies in the target, else 0;
- `box_x1` ...: the last clicked box, of no area if a point was clicked; `target_x1` ...: the target;
- `image_width`, `image_height`: of the screen; `task_weight`: 1 / (5 sqrt(a)) between 1/2 and 2, with the part a of the
  screen that the target takes;
- `reward.format`: 1 if all actions were in a known form; `reward.action`: 1 if the last one was a click;
  `reward.argument`: 1 if the last click lay in the target.
"""


class ScreenFacts:
    """Facts of one episode on a screen, updated action by action.

    Args:
        width: width of the screen in pixels.
        height: height of the screen in pixels.
        target: box that a correct action clicks; None if it is unknown.
    """

    def __init__(self, width: float, height: float, target: Box | None) -> None:
        self._target = target
        self._known: dict[str, float] = {"image_width": width, "image_height": height, "reward.format": 1.0}
        if target is not None:
            self._known |= _edges("target", target)
            part = (target[2] - target[0]) * (target[3] - target[1]) / (width * height)
            self._known["task_weight"] = min(2.0, max(0.5, 0.2 / math.sqrt(part))) if part > 0 else 2.0

    def of(self, action: ScreenAction | None, box: Box | None, *, cut: bool = False) -> dict[str, float]:
        """Return the facts after an action.

        Args:
            action: the action; None if its text was in no known form.
            box: the clicked box; a point is a box without area.
            cut: whether a limit cut the action, so that its form is not a mistake.
        """
        facts = self._known
        if action is None and not cut:
            facts["reward.format"] = 0.0
        of_step = {}
        if box is not None:
            facts |= _edges("box", box)
            of_step = {"click_x": (box[0] + box[2]) / 2, "click_y": (box[1] + box[3]) / 2}
        if self._target is not None:
            left, top, right, bottom = self._target
            hit = box is not None and left <= of_step["click_x"] <= right and top <= of_step["click_y"] <= bottom
            of_step["matched"] = facts["reward.argument"] = float(hit)
            facts["reward.action"] = float(action is not None and action.kind == "click")
        return {**facts, **of_step}


def _edges(name: str, box: Box) -> dict[str, float]:
    return {f"{name}_{edge}": value for edge, value in zip(_EDGES, box, strict=True)}
