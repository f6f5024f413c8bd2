"""Quests in a house of 9 rooms: fetch the key, go to the vault, open it. One reward at the end; states repeat."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

from teachable import FACTS, Turns, checked

from agentrl_core import env

_NAMES = "attic bath cellar den hall kitchen library office yard"
ROOMS = tuple(_NAMES.split())
_OTHER_WORDS = "key vault in at take open here holding no what"
MOVES = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
_ROWS, _COLUMNS = 3, 3
_WALLS = 3
"""Doors of the grid that are bricked up; the house stays connected."""


def _house() -> dict[int, dict[str, int]]:
    """Return the exits of each room: the same house in every task."""
    exits: dict[int, dict[str, int]] = {room: {} for room in range(_ROWS * _COLUMNS)}
    for room, doors in exits.items():
        row, column = divmod(room, _COLUMNS)
        for name, (down, right) in MOVES.items():
            if 0 <= row + down < _ROWS and 0 <= column + right < _COLUMNS:
                doors[name] = (row + down) * _COLUMNS + column + right
    opposite = dict(zip(MOVES, ("south", "west", "north", "east"), strict=True))
    rng, walls = random.Random(43), 0  # noqa: S311 -- a plan of a house, no secret
    while walls < _WALLS:
        room = rng.choice(list(exits))
        name = rng.choice(list(exits[room]))
        other = exits[room].pop(name)
        back = exits[other].pop(opposite[name])
        if len(_distances(exits, 0)) == len(exits):
            walls += 1
        else:
            exits[room][name], exits[other][opposite[name]] = other, back
    return exits


def _distances(exits: dict[int, dict[str, int]], goal: int) -> dict[int, int]:
    distances, waiting = {goal: 0}, deque([goal])
    while waiting:
        room = waiting.popleft()
        for near in exits[room].values():
            if near not in distances:
                distances[near] = distances[room] + 1
                waiting.append(near)
    return distances


_EXITS = _house()
_FAR = {goal: _distances(_EXITS, goal) for goal in _EXITS}


class Quest:
    """Quests of 5 to 12 actions.

    The first observation names the room of the key and that of the vault; each one has the room, its exits, and
    whether the key is here or held. Actions are the directions, `take` and `open`. The reward is 1 for the open vault.

    Args:
        max_turns: actions in an episode.
        held_out: number of held-out quests; all others are for training.
    """

    runs: ClassVar = "inline"
    facts: ClassVar = FACTS
    words: ClassVar = (*ROOMS, *MOVES, *_OTHER_WORDS.split())

    def __init__(self, *, max_turns: int = 14, held_out: int = 96) -> None:
        self.max_turns = max_turns
        quests = [
            (start, key, vault)
            for start in _EXITS
            for key in _EXITS
            for vault in _EXITS
            if len({start, key, vault}) == 3 and 5 <= _FAR[key][start] + _FAR[vault][key] + 2 <= 12
        ]
        random.Random(0).shuffle(quests)  # noqa: S311 -- an order of tasks, no secret
        self._quests = {"held_out": quests[:held_out], "train": quests[held_out:]}

    def tasks(self, count: int, *, split: env.base.Split = "train", start: int = 0) -> list[env.Task]:
        """Return quests of a split."""
        quests = self._quests[split]
        return [
            env.Task(f"quest/{split}/{number}", "Open the vault.", "quest", {"rooms": list(quests[number])})
            for number in checked(start, count, len(quests))
        ]

    def reset(self, task: env.Task, seed: int) -> Walk:
        """Start a quest."""
        del seed
        payload: Any = task.payload
        return Walk(*payload["rooms"], max_turns=self.max_turns)


class Walk(Turns):
    """One quest."""

    def __init__(self, start: int, key: int, vault: int, *, max_turns: int) -> None:
        super().__init__(max_turns)
        self._room, self._key, self._vault = start, key, vault
        self._holds = False
        self.observation = f"key in {ROOMS[key]} vault in {ROOMS[vault]} {self._look()}"

    def step(self, action: str) -> env.StepResult:
        """Take an action; one that is impossible changes nothing."""
        if action == "take" and self._room == self._key and not self._holds:
            self._holds = True
        elif action == "open" and self._room == self._vault and self._holds:
            return self.ended(success=True)
        elif action in _EXITS[self._room]:
            self._room = _EXITS[self._room][action]
        else:
            return self.refused(f"no {self._look()}")
        return self.answered(self._look())

    def state_key(self) -> bytes:
        """Return room and hands, without the number of the turn."""
        return f"{self._key} {self._vault} {self._room} {self._holds}".encode()

    def best(self) -> str:
        """Return an action of a shortest solution."""
        goal = self._vault if self._holds else self._key
        if self._room == goal:
            return "open" if self._holds else "take"
        return min(_EXITS[self._room], key=lambda name: _FAR[goal][_EXITS[self._room][name]])

    def slip(self, rng: random.Random) -> str:
        """Return a random possible action."""
        return rng.choice(list(self._possible()))

    def _possible(self) -> Iterator[str]:
        yield from _EXITS[self._room]
        if self._room == self._key and not self._holds:
            yield "take"

    def _look(self) -> str:
        key = " holding key" if self._holds else " key here" if self._room == self._key else ""
        return f"at {ROOMS[self._room]} {' '.join(_EXITS[self._room])}{key}"
