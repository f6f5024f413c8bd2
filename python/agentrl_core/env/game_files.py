"""Files of existing text games: those of TextWorld, and of ALFWorld."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from agentrl_core.env.base import Split, Task
from agentrl_core.env.text_game import checked_range
from agentrl_core.exceptions import InvalidInputError

Files = str | os.PathLike[str]

_STORY = re.compile(r"\.z[1-8]")
PDDL = ".tw-pddl"
_SPLITS = ("train", "held_out")
_UNSOLVABLE = re.compile(rb'"solvable"\s*:\s*false')


class GameFiles:
    """The games of each split, in the order of their file names.

    Args:
        files: a game, a folder of games (also in subfolders), or one of these for each split.

    Raises:
        InvalidInputError: a file does not exist, none is a game, or a game has no TextWorld metadata (`.json`).
    """

    def __init__(self, files: Files | Mapping[Split, Files]) -> None:
        paths = cast(Mapping[str, Files], files) if isinstance(files, Mapping) else {"train": files}
        if not paths or any(split not in _SPLITS for split in paths):
            problem = f"has the split {next(each for each in paths if each not in _SPLITS)!r}" if paths else "is empty"
            raise InvalidInputError(
                f"TextWorld: files {problem}; give a path, or a dict with a path for 'train' and one for 'held_out'"
            )
        self._games = {split: _games(Path(path).absolute()) for split, path in paths.items()}

    def tasks(self, count: int, split: Split, start: int) -> list[Task]:
        """Return tasks for games `start` to `start + count` of a split, in the order of their names.

        Raises:
            InvalidInputError: the split has no such range.
        """
        games = self._games.get(split, [])
        return [
            Task(
                f"{games[at][0]}/{split}",
                "A text game: reach its goal.",
                _domain(games[at][1]),
                {"file": str(games[at][1])},
            )
            for at in checked_range(count, split, start, len(games))
        ]


def _games(path: Path) -> list[tuple[str, Path]]:
    """Return the games of a folder or file with their names, without those that ALFWorld marks as unsolvable."""
    if path.is_dir():
        found = sorted(each for each in path.rglob("*") if each.suffix == PDDL or _STORY.fullmatch(each.suffix))
        if not found:
            raise InvalidInputError(
                f"TextWorld: files={str(path)!r} has no game (.z8 or {PDDL}); give a folder of games"
            )
    elif path.is_file() and (path.suffix == PDDL or _STORY.fullmatch(path.suffix)):
        found = [path]
    else:
        raise InvalidInputError(
            f"TextWorld: files={str(path)!r} is neither a game (.z8 or {PDDL}) nor a folder; give one of these"
        )
    game = next((each for each in found if each.suffix != PDDL and not each.with_suffix(".json").is_file()), None)
    if game is not None:
        raise InvalidInputError(
            f"TextWorld: files: {str(game)!r} has no {game.with_suffix('.json').name} beside it; copy that file "
            "too, as it has the game's goal and score"
        )
    base = path if path.is_dir() else path.parent
    return [
        (each.relative_to(base).as_posix(), each)
        for each in found
        if each.suffix != PDDL or not _UNSOLVABLE.search(each.read_bytes())
    ]


def _domain(path: Path) -> str:
    """Return the kind of a task: for ALFWorld the first part of its folder's name, otherwise `textworld`."""
    return path.parent.parent.name.partition("-")[0] if path.suffix == PDDL else "textworld"
