"""MiniGrid and BabyAI as text or as images: the mission and the view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from agentrl_core.env.gymnasium import Gymnasium
from agentrl_core.env.image import Image
from agentrl_core.env.png import encode_png
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError

if TYPE_CHECKING:
    import gymnasium

_ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
_CELL = 8
_UNSEEN_OR_EMPTY = ("unseen", "empty", "floor")


class MiniGrid(Gymnasium):
    """Grid worlds of the package `minigrid` (MiniGrid and BabyAI), as text or as images.

    The first observation has the mission and the actions, and each one the view of the seven by seven cells ahead. As
    text it names each object with its place ("a red ball 2 ahead, 1 left"), the nearest wall straight ahead, and the
    carried object. As an image it is a PNG of 8 x 8 pixels a cell, in which the agent looks up from the middle of the
    last row. Success is a positive reward at the end, as defined by the package (1 for the mission done at once, less
    for later).

    Args:
        game: name of a registered environment, such as `BabyAI-GoToRedBall-v0` or `MiniGrid-DoorKey-5x5-v0`.
        observation: `text` or `image`.
        max_turns: actions in an episode; the environment's own limit holds too.
        seed: seed of the tasks; two seeds share none.
        held_out: number of held-out tasks.

    Raises:
        MissingDependencyError: minigrid is not installed.
        InvalidInputError: the environment does not exist, or an argument is out of range.

    Example:
        >>> world = MiniGrid("BabyAI-GoToRedBall-v0")
        >>> episode = world.reset(world.tasks(1)[0], seed=0)
        >>> print(episode.observation)
        Your mission: go to the red ball
        Actions: turn left, turn right, go forward, pick up, drop, toggle, done
        ...
        >>> episode.step("turn left").terminated
        False
    """

    def __init__(
        self,
        game: str,
        *,
        observation: Literal["text", "image"] = "text",
        max_turns: int = 100,
        seed: int = 0,
        held_out: int = 512,
    ) -> None:
        if observation not in ("text", "image"):
            raise InvalidInputError(f"MiniGrid: observation is {observation!r}; give 'text' or 'image'")
        super().__init__(
            game,
            describe=describe,
            actions=_ACTIONS,
            instruction=f"A mission in the grid world {game}.",
            max_turns=max_turns,
            seed=seed,
            held_out=held_out,
        )
        self._draw = draw if observation == "image" else None

    def _instruction_of(self, observation: Any) -> str:
        return f"Your mission: {observation['mission']}"

    def _make(self, seed: int) -> gymnasium.Env[Any, Any]:
        try:
            import minigrid  # noqa: F401 -- registers its environments
        except ImportError as error:
            raise MissingDependencyError(
                "MiniGrid needs the package minigrid: pip install 'agentrl-core[minigrid]'"
            ) from error
        environment = super()._make(seed)
        if "mission" not in getattr(environment.observation_space, "spaces", {}):
            raise InvalidInputError(f"MiniGrid: {self._game!r} has no mission; use env.Gymnasium for it")
        return environment


def describe(environment: Any, observation: Any) -> str:
    """Describe the view and the carried object of an agent, nearest objects first."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

    states = {number: name for name, number in STATE_TO_IDX.items()}
    view = observation["image"]
    # The agent stands in the middle of the last row of its view and looks at row 0.
    middle, last = view.shape[0] // 2, view.shape[1] - 1
    things, wall = [], None
    for column in range(view.shape[0]):
        for row in range(view.shape[1]):
            kind, colour, state = (int(number) for number in view[column, row])
            name = IDX_TO_OBJECT[kind]
            ahead, aside = last - row, column - middle
            if name in _UNSEEN_OR_EMPTY or (ahead == 0 and aside == 0):
                continue
            if name == "wall":
                if aside == 0 and (wall is None or ahead < wall):
                    wall = ahead
                continue
            condition = f"{states[state]} " if name == "door" else ""
            paint = "" if name in ("goal", "lava") else f"{IDX_TO_COLOR[colour]} "
            things.append((ahead + abs(aside), aside, ahead, f"a {condition}{paint}{name} {_place(ahead, aside)}"))
    lines = ["You see " + "; ".join(text for *_, text in sorted(things)) + "." if things else "You see nothing."]
    if wall is not None:
        lines.append(f"A wall is {wall} ahead.")
    carried = environment.carrying
    lines.append(f"You carry a {carried.color} {carried.type}." if carried is not None else "You carry nothing.")
    return " ".join(lines)


def draw(environment: Any) -> Image:
    """Draw an agent's view as an image; the agent faces up."""
    return Image(encode_png(environment.get_frame(tile_size=_CELL, agent_pov=True)))


def _place(ahead: int, aside: int) -> str:
    parts = [f"{ahead} ahead"] if ahead else []
    if aside:
        parts.append(f"{abs(aside)} {'right' if aside > 0 else 'left'}")
    return ", ".join(parts)
