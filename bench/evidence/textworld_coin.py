"""TextWorld's coin collector: find a coin at the end of a chain of rooms, 5 to 12 commands away."""

from __future__ import annotations

import json
import os
import random
import re
import string
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from played import Played
from teachable import FACTS, checked

from agentrl_core import env

HERE = Path(__file__).parent
GAMES = HERE.parents[1] / "runs" / "evidence" / "textworld"
LENGTHS = range(5, 13)
_LIMITS = {"train": 96, "held_out": 64}
_FIRST_HELD_OUT = 1_000_000
_MAX_TURNS = 14
_AT_ONCE = 4  # games made by one process, which takes seconds to start
_BACK = {"go north": "go south", "go south": "go north", "go east": "go west", "go west": "go east"}
_COMMANDS = "\n\nCommands: "
_NOT_SHOWN = re.compile(r"First, .*|-= .* =-|[^\w\s'-]")
_DIGITS = re.compile(r"(?<=[a-z])(?=\d)|(?<=\d)(?=\d)")
_FILLERS = "you are in the there is an a to on floor and"
_SHOWN = "room exit coin north south east west go take can't that way see any such thing"
_OTHER = "other"
WORDS = (*_SHOWN.split(), *string.digits, _OTHER)


def words_of(text: str) -> str:
    """Return the words that identify a room, without the goal, which lists the way, listed commands and fillers."""
    words = _DIGITS.sub(" ", _NOT_SHOWN.sub(" ", text.partition(_COMMANDS)[0]).lower()).split()
    return " ".join(word if word in WORDS else _OTHER for word in words if word not in _FILLERS.split())


class TextWorldCoin:
    """Games that do not show the map and the way, by `env.TextWorld`.

    The game of a task is made when it is first played. The reward is 1 for the coin. Games are deterministic, so
    answers to a sequence of commands are cached.
    """

    runs: ClassVar = "inline"
    facts: ClassVar = FACTS
    words: ClassVar = WORDS

    def __init__(self) -> None:
        self._known: Known = {}

    def tasks(self, count: int, *, split: env.base.Split = "train", start: int = 0) -> list[env.Task]:
        """Return games of a split."""
        first = _FIRST_HELD_OUT if split == "held_out" else 0
        return [
            env.Task(f"textworld/{split}/{number}", "Take the coin.", "textworld", {"seed": first + number})
            for number in checked(start, count, _LIMITS[split])
        ]

    def reset(self, task: env.Task, seed: int) -> CoinGame:
        """Start a game."""
        del seed
        payload: Any = task.payload
        return CoinGame(game_of(payload["seed"]), self._known)


def game_of(seed: int) -> Path:
    """Return the file of a game; make it and the following ones if it is missing."""
    names = {each: f"{LENGTHS[each % len(LENGTHS)]}-{each}" for each in range(seed, seed + _AT_ONCE)}
    path = GAMES / f"{names[seed]}.z8"
    if not path.is_file():
        games = [name.replace("-", ":") for name in names.values()]
        command = [sys.executable, str(HERE / "textworld_games.py"), str(GAMES), *games]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S603 -- our own program
    return path


Known = dict[tuple[str, ...], tuple[env.StepResult, bytes]]
"""The answer and the state after a sequence of commands in a game."""


class Repeated:
    """An episode of a game that is played only if the answer is not cached."""

    def __init__(self, path: Path, known: Known) -> None:
        self._path, self._known = path, known
        self._history: tuple[str, ...] = (path.stem,)
        self._game: Any = None
        if self._history not in known:
            self._game = self._opened()
            known[self._history] = (env.StepResult(self._game.observation), self._game.state_key())

    @property
    def observation(self) -> Any:
        """Return the last observation."""
        return self._known[self._history][0].observation

    def step(self, action: str) -> env.StepResult:
        """Return the answer to a command."""
        before, self._history = self._history, (*self._history, action)
        if self._history not in self._known:
            if self._game is None:
                self._game = self._opened()
                for command in before[1:]:
                    self._game.step(command)
            self._known[self._history] = (self._game.step(action), self._game.state_key())
        elif self._game is not None:
            self._game.step(action)
        return self._known[self._history][0]

    def state_key(self) -> bytes:
        """Return the state of the game."""
        return self._known[self._history][1]

    def close(self) -> None:
        """Close the game; a second call does nothing."""
        if self._game is not None:
            self._game.close()
        self._game = None

    def _opened(self) -> Any:
        world = env.TextWorld(files=self._path, folder=GAMES, show_commands=True, max_turns=_MAX_TURNS + 1)
        return world.reset(world.tasks(1)[0], 0)


class CoinGame(Played):
    """One game. Demonstrations follow the walkthrough that TextWorld wrote, and go back after a slip."""

    def __init__(self, path: Path, known: Known) -> None:
        super().__init__(Repeated(path, known), _MAX_TURNS, words_of)
        self._path = path
        self._moves: list[str] = []

    def step(self, action: str) -> env.StepResult:
        """Take an action."""
        result = super().step(action)
        if action in _BACK and not result.flags & env.StepFlag.FORMAT_ERROR:
            self._moves.append(action)
        return result

    def best(self) -> str:
        """Return the way back to the walkthrough, or its next command."""
        way: list[str] = json.loads(self._path.with_suffix(".json").read_text(encoding="utf-8"))["metadata"][
            "walkthrough"
        ]
        position, back = 0, list[str]()
        for action in self._moves:
            if back and action == back[-1]:
                back.pop()
            elif not back and action == way[position]:
                position += 1
            else:
                back.append(_BACK[action])
        return back[-1] if back else way[position]

    def slip(self, rng: random.Random) -> str:
        """Return a move through an exit that the game lists."""
        listed = str(self._game.observation).partition(_COMMANDS)[2].split("; ")
        return rng.choice([command for command in listed if command in _BACK])
