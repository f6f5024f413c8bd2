"""Quests of TextWorld: real games of 5 rooms, whose goal lists 5 to 12 commands; the map is not shown."""

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
UNKNOWN = "other"
_LIMITS = {"train": 128, "held_out": 64}
_FIRST_HELD_OUT = 1_000_000
_MAX_TURNS = 14
_BACK = {"go north": "go south", "go south": "go north", "go east": "go west", "go west": "go east"}
_COMMANDS = "\n\nCommands: "
_NOT_SHOWN = re.compile(r"-= .* =-|[^\w\s'-]")
_WITHIN_NAMES = re.compile(r"(?<=[a-z])(?=\d)|(?<=\d)(?=\d)|(?<=\b[A-Z]-)(?=[a-z])")
_BEFORE_PARTS = re.compile(r" (?=\d)|(?<=\b[A-Z]-) ")
_ARTICLES = ("a", "an", "the")
_TEXT = (
    "first next go south north east west take put drop eat open close lock unlock insert from in into on with to "
    "you are is there it it's exit leading here holds contains revealing nothing and closed locked up pick carrying "
    "carry room door box stand thing snack key floor ground can't see any such that's not verb i recognise must name "
    "something more substantial have look"
)

WORDS = (*_TEXT.split(), *string.digits, *(f"{letter}-" for letter in string.ascii_uppercase), UNKNOWN)


def words_of(text: str) -> str:
    """Return a text without listed commands, titles, articles, punctuation and capitals; `thing42` is `thing 4 2`."""
    words = _WITHIN_NAMES.sub(" ", _NOT_SHOWN.sub(" ", text.partition(_COMMANDS)[0])).split()
    known = (word if word.endswith("-") else word.lower() for word in words)
    return " ".join(word if word in WORDS else UNKNOWN for word in known if word not in _ARTICLES)


def command_of(action: str) -> str:
    """Return the command of an action: `insert thing 4 2 into J- box` is `insert thing42 into J-box`."""
    return _BEFORE_PARTS.sub("", action)


class TextWorldQuests:
    """Quests such as `First, take the C-key in room0. Next, unlock C-box with C-key. ...`, by `env.TextWorld`.

    The game of a task has a quest of 5 to 12 commands and is made when it is first played. The reward is 1 for the
    game won. Games have no chance: what they answered to a sequence of commands is kept, and not computed again.
    """

    runs: ClassVar = "inline"
    facts: ClassVar = FACTS
    words: ClassVar = WORDS

    def __init__(self) -> None:
        self._known: Known = {}

    def tasks(self, count: int, *, split: env.base.Split = "train", start: int = 0) -> list[env.Task]:
        """Return quests of a split."""
        first = _FIRST_HELD_OUT if split == "held_out" else 0
        return [
            env.Task(f"textworld/{split}/{number}", "Reach the goal.", "textworld", {"seed": first + number})
            for number in checked(start, count, _LIMITS[split])
        ]

    def reset(self, task: env.Task, seed: int) -> Adventure:
        """Start a quest."""
        del seed
        payload: Any = task.payload
        return Adventure(game_of(payload["seed"]), self._known)


def game_of(seed: int) -> Path:
    """Return the file of a game, which is made if it is not there."""
    length = LENGTHS[seed % len(LENGTHS)]
    path = GAMES / f"{length}-{seed}.z8"
    if not path.is_file():
        command = [sys.executable, str(HERE / "textworld_games.py"), str(GAMES), f"{length}:{seed}"]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S603 -- our own program
    return path


Known = dict[tuple[str, ...], tuple[env.StepResult, bytes]]
"""The answer and the state after a game and a sequence of commands."""


class Repeated:
    """An episode of a game that is played only if its answer is not known yet."""

    def __init__(self, path: Path, known: Known) -> None:
        self._path, self._known = path, known
        self._history: tuple[str, ...] = (path.stem,)
        self._game: Any = None
        if self._history not in known:
            self._game = self._opened()
            known[self._history] = (env.StepResult(self._game.observation), self._game.state_key())

    @property
    def observation(self) -> Any:
        """The last observation."""
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
        """Close the game; a second time does nothing."""
        if self._game is not None:
            self._game.close()
        self._game = None

    def _opened(self) -> Any:
        world = env.TextWorld(files=self._path, folder=GAMES, show_commands=True, max_turns=_MAX_TURNS + 1)
        return world.reset(world.tasks(1)[0], 0)


class Adventure(Played):
    """One quest. Demonstrations follow the walkthrough that TextWorld wrote, and go back after a slip."""

    def __init__(self, path: Path, known: Known) -> None:
        self._repeated = Repeated(path, known)
        super().__init__(self._repeated, _MAX_TURNS, words_of, command_of)
        self._path = path
        self._accepted_actions: list[str] = []

    def step(self, action: str) -> env.StepResult:
        """Take an action."""
        found = super().step(action)
        if not found.flags & env.StepFlag.FORMAT_ERROR:
            self._accepted_actions.append(action)
        return found

    def best(self) -> str:
        """Return the way back to where the walkthrough was left, or its next command."""
        written = json.loads(self._path.with_suffix(".json").read_text(encoding="utf-8"))
        way = [words_of(command) for command in written["metadata"]["walkthrough"]]
        done, back = 0, list[str]()
        for action in self._accepted_actions:
            if back and action == back[-1]:
                back.pop()
            elif not back and action == way[done]:
                done += 1
            elif action in _BACK:
                back.append(_BACK[action])
        return back[-1] if back else way[done]

    def slip(self, rng: random.Random) -> str:
        """Return a move that is possible; a look around if there is none."""
        listed = str(self._repeated.observation).rpartition(_COMMANDS)[2].split("; ")
        return rng.choice([command for command in listed if command in _BACK] or ["look"])
