"""Text adventures of the package `textworld`, generated on this machine or read from files."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from agentrl_core._util.files import new_folder
from agentrl_core.env.base import ExtraColumn, Split, Task
from agentrl_core.env.game_files import PDDL, Files, GameFiles
from agentrl_core.env.text_game import (
    GAME_FACTS,
    SEEDS_PER_SPLIT,
    GameEpisode,
    GameStep,
    check_counts,
    payload_of,
    seeded_tasks,
)
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError

_MAKER = Path(__file__).with_name("textworld_maker.py")
_SETTINGS: Mapping[str, Mapping[str, object]] = {
    "coin_collector": {"level": 3},
    "treasure_hunter": {"level": 3},
    "simple": {"rewards": "dense", "goal": "detailed"},
    "cooking": {
        "recipe": 1,
        "take": 1,
        "go": 1,
        "open": False,
        "cook": False,
        "cut": False,
        "drop": False,
        "recipe_seed": 0,
    },
    "custom": {"nb_rooms": 2, "nb_objects": 4, "quest_length": 2},
}
# Games of the package with other distributions for held-out games.
_OF_SPLIT: Mapping[str, Mapping[Split, Mapping[str, object]]] = {
    "simple": {"train": {"test": False}, "held_out": {"test": True}},
    "cooking": {"train": {"split": "train"}, "held_out": {"split": "test"}},
}
# Commands to the interpreter instead of the game: they would end it, or write files.
_NOT_FOR_PLAYERS = frozenset(
    ("quit", "q", "die", "restart", "save", "restore", "undo", "script", "unscript", "recording", "replay")
)
_LONGEST_COMMAND = 100
# A backslash starts commands to the interpreter itself, which exits at unknown ones.
_ODD = re.compile(r"[^ -~]|\\")
_STATUS = re.compile(r"\n>\s*(-= .* =-)?\s*(\d+/\d+)?\s*\Z")
# The package takes seeds of 32 bits, of which each split of an environment has its own range.
_SEEDS = (1 << 31) // SEEDS_PER_SPLIT


class TextWorld:
    """Environment of TextWorld adventures, generated from seeds or read from files: rooms, objects, a goal to reach.

    The first observation has the goal. The reward of a step is the increase of the game's score; success is a won game.
    An action is a command of the
    game, alone or in `<action>…</action>`. Commands that change nothing and are not admissible are flagged
    `StepFlag.FORMAT_ERROR`.

    Facts: `points` (the game's, divided by its highest), `command`, `admissible` (number of accepted commands). The
    state is the goal, the room, the inventory and the admissible commands.

    A game is generated when its task is first played (some seconds) and stored in `folder`; equal arguments give
    identical games. Episodes run in processes, since the interpreter is a C library without thread support.

    Args:
        game: `coin_collector`, `treasure_hunter`, `simple`, `cooking` or `custom` (any world of
            `textworld.GameOptions`).
        settings: settings of the game that override these defaults: for the first two `level` (3); for `simple`
            `rewards` ("dense") and `goal` ("detailed"); for `cooking` `recipe` (1), `take` (1), `go` (1), `open`,
            `cook`, `cut`, `drop` (False), `recipe_seed` (0); for `custom` `nb_rooms` (2), `nb_objects` (4),
            `quest_length` (2). Held-out games of `simple` and `cooking` come from the package's test distributions.
        show_commands: list the admissible commands in every observation.
        max_turns: most actions in an episode.
        seed: seed of the games; two seeds share none.
        held_out: number of held-out games.
        folder: folder in which games are stored, which several runs can share; default: a temporary folder that is
            removed with the environment.
        files: existing games to use instead of `game`: of TextWorld (`.z8` with its `.json`) or ALFWorld (`.tw-pddl`,
            which needs `alfworld`). A file, a folder of files, or one of these for each split as in
            `{"train": ..., "held_out": ...}`. A task is a file; games that ALFWorld marks as unsolvable are left out.

    Raises:
        MissingDependencyError: textworld is not installed.
        InvalidInputError: an unknown game or setting, or an argument out of range; from `reset`: settings that the
            package refuses.

    Example:
        >>> world = TextWorld("coin_collector", {"level": 1})
        >>> episode = world.reset(world.tasks(1)[0], seed=0)
        >>> outcome = episode.step("<action>take coin</action>")
        >>> outcome.reward, outcome.success
        (1.0, True)
        >>> episode.close(); world.close()
    """

    runs: ClassVar = "process"
    facts: ClassVar[Mapping[str, ExtraColumn]] = {**GAME_FACTS, "admissible": ExtraColumn("step")}

    def __init__(
        self,
        game: str = "coin_collector",
        settings: Mapping[str, object] | None = None,
        *,
        show_commands: bool = False,
        max_turns: int = 50,
        seed: int = 0,
        held_out: int = 512,
        folder: str | os.PathLike[str] | None = None,
        files: Files | Mapping[Split, Files] | None = None,
    ) -> None:
        check_counts("TextWorld", max_turns=max_turns, seed=seed, held_out=held_out)
        if seed >= _SEEDS:
            raise InvalidInputError(f"TextWorld: seed is {seed}; give a seed from 0 to {_SEEDS - 1}")
        if game not in _SETTINGS:
            raise InvalidInputError(f"TextWorld: game is {game!r}; give one of {', '.join(_SETTINGS)}")
        unknown = set(settings or ()) - _SETTINGS[game].keys()
        if unknown:
            raise InvalidInputError(
                f"TextWorld: settings has {min(unknown)!r}; use some of those of {game}: {', '.join(_SETTINGS[game])}"
            )
        _textworld()
        if files is not None and settings:
            raise InvalidInputError(
                "TextWorld: both files and settings are given, but settings are for generated games; omit one of them"
            )
        self._files = None if files is None else GameFiles(files)
        self._game = game
        self._settings = {**_SETTINGS[game], **(settings or {})}
        self._show_commands = show_commands
        self._max_turns = max_turns
        self._seed = seed
        self._held_out = held_out
        self._temporary: weakref.finalize[..., Any] | None = None
        if folder is None:
            folder = tempfile.mkdtemp(prefix="agentrl-textworld-")
            self._temporary = weakref.finalize(self, _remove, folder, os.getpid())
        self._folder = Path(folder).absolute()

    def tasks(self, count: int, *, split: Split = "train", start: int = 0) -> list[Task]:
        """Return tasks `start` to `start + count` of a split; the same call always returns the same tasks.

        Raises:
            InvalidInputError: the range is not in the split.
        """
        if self._files is not None:
            return self._files.tasks(count, split, start)
        tasks = seeded_tasks(
            self._game,
            f"A game of TextWorld, {self._game}: reach the goal that its first words tell.",
            seed=self._seed,
            split=split,
            count=count,
            start=start,
            held_out=self._held_out,
        )
        return [
            Task(t.task_id, t.question, t.domain, {**cast(dict[str, int], t.payload), "split": split}) for t in tasks
        ]

    def reset(self, task: Task, seed: int) -> GameEpisode:  # noqa: ARG002 -- games have no chance
        """Start an episode; the game is generated if it does not exist.

        Raises:
            InvalidInputError: the task is not one of this environment's, or the package refuses the settings.
        """
        if self._files is not None:
            path = Path(str(payload_of(task, "TextWorld", ["file"])[0]))
        else:
            number, split = payload_of(task, "TextWorld", ["seed", "split"])
            path = self._made(cast(int, number), cast(Split, split))
        game = _TextWorldGame(path, show_commands=self._show_commands)
        return GameEpisode(game, game.first, max_turns=self._max_turns)

    def close(self) -> None:
        """Remove the temporary folder of the games; a second call does nothing."""
        if self._temporary is not None:
            self._temporary()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_temporary": None}

    def _made(self, seed: int, split: Split) -> Path:
        """Return the file of a game, which is generated once even for concurrent requests."""
        settings = {**self._settings, **_OF_SPLIT.get(self._game, {}).get(split, {})}
        words = json.dumps([self._game, settings, seed], sort_keys=True)
        name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
        home = self._folder / name
        if (home / "game.z8").is_file():
            return home / "game.z8"
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            lock_file = os.open(self._folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise InvalidInputError(
                f"TextWorld: folder={str(self._folder)!r} cannot be written ({error}); give a folder with write "
                "permission"
            ) from None
        with os.fdopen(lock_file, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (home / "game.z8").is_file():
                with tempfile.TemporaryDirectory(dir=self._folder) as place:
                    request = {"game": self._game, "settings": settings, "seed": seed, "path": f"{place}/game.z8"}
                    maker = subprocess.run(  # noqa: S603 -- this interpreter, our own program
                        [sys.executable, "-P", str(_MAKER), json.dumps(request)],
                        cwd=place,
                        env={**os.environ, "PYTHONHASHSEED": "0"},
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        text=True,
                        check=False,
                    )
                    if maker.returncode != 0:
                        why = maker.stderr.strip().splitlines()[-1:] or [f"exit status {maker.returncode}"]
                        raise InvalidInputError(
                            f"TextWorld: {self._game} with {settings} cannot be generated ({why[0]}); change the "
                            "settings"
                        )
                    half = new_folder(home)
                    for part in ("game.json", "game.z8"):
                        Path(place, part).rename(half / part)
                    half.rename(home)
        return home / "game.z8"


class _TextWorldGame:
    def __init__(self, path: Path, *, show_commands: bool) -> None:
        requested = [
            "admissible_commands",
            "description",
            "inventory",
            "max_score",
            "objective",
            "score",
            "won",
            "lost",
        ]
        if path.suffix == PDDL:  # its state has no descriptions
            requested.append("facts")
        textworld = _textworld()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the interpreter warns that it supports other games better
            infos = textworld.EnvInfos(**dict.fromkeys(requested, True))
            wrappers = [_names_of_alfworld()] if path.suffix == PDDL else []
            self._environment = textworld.start(str(path), infos, wrappers)
        self._environment.seed(0)
        self._state = self._environment.reset()
        self._show_commands = show_commands
        self._score = 0
        self._open = True
        texts = [self._state.objective, self._state.description]
        if path.suffix == PDDL:
            texts = [self._state.feedback]
        self.first = self._shown("\n\n".join(map(_tidy, texts)))

    def play(self, command: str) -> GameStep:
        commands = self._state.admissible_commands
        words = command.lower().split()
        if not words or words[0] in _NOT_FOR_PLAYERS or len(command) > _LONGEST_COMMAND or _ODD.search(command):
            return self._move("That is no command of this game.", refused=True)
        before = self.state()
        self._state, _, _ = self._environment.step(command)
        refused = command not in commands and self.state() == before
        return self._move(_tidy(self._state.feedback), refused=refused)

    def _move(self, text: str, *, refused: bool) -> GameStep:
        score = self._state.score or 0  # which games of ALFWorld do not have before the first command
        gain, self._score = score - self._score, score
        return GameStep(
            self._shown(text),
            score=self._score / (self._state.max_score or 1),
            reward=float(gain),
            terminated=bool(self._state.won or self._state.lost),
            success=bool(self._state.won),
            refused=refused,
            facts={"admissible": float(len(self._state.admissible_commands))},
        )

    def state(self) -> str:
        state = self._state
        parts = (state.objective, state.description, state.inventory, "; ".join(state.admissible_commands))
        known = "; ".join(sorted(map(str, state.facts or ())))
        return "\n\n".join(_tidy(part) for part in (*parts, known) if part)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._environment.close()

    def _shown(self, text: str) -> str:
        if not self._show_commands:
            return text
        return f"{text}\n\nCommands: {'; '.join(self._state.admissible_commands)}"


def _tidy(text: str) -> str:
    """Remove the last prompt with its status line, spaces around lines, and empty lines."""
    lines = [line.strip() for line in _STATUS.sub("", text).splitlines()]
    return re.sub(r"\n{2,}", "\n", "\n".join(lines)).strip()


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # a forked child has a copy of the environment, not of the folder
        shutil.rmtree(folder, ignore_errors=True)


def _names_of_alfworld() -> Any:
    """Return a class that names the objects of an ALFWorld game, such as `mug 1`."""
    try:
        import fast_downward  # noqa: F401 -- textworld finds out later, with another message
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    except ImportError as error:
        raise MissingDependencyError("games of ALFWorld need the package alfworld: pip install alfworld") from error
    return AlfredDemangler


def _textworld() -> Any:
    try:
        import textworld
    except ImportError as error:
        raise MissingDependencyError(
            "TextWorld needs the package textworld: pip install 'agentrl-core[textworld]'"
        ) from error
    return textworld
