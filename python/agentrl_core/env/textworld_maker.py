"""The program that generates one game of TextWorld; `TextWorld` runs it in a separate process.

The package generates games from seeds, but some depend on the iteration order of a set, so this program runs with fixed
hashing. Its argument is a JSON object: `game`, `settings`, `seed`, `path` (of the game, `.z8`).
"""

from __future__ import annotations

import json
import sys
from typing import Any


def make(game: str, settings: dict[str, Any], seed: int, path: str) -> None:
    """Generate a game, and write it to `path` with its metadata in a second file."""
    import textworld
    from textworld.challenges import CHALLENGES

    options = textworld.GameOptions()
    options.seeds = seed
    options.path = path
    if game == "custom":
        for name, value in settings.items():
            setattr(options, name, value)
        generated = textworld.generator.make_game(options)
    else:
        generated = CHALLENGES[f"tw-{game}"][1](settings, options)
    textworld.generator.compile_game(generated, options)


if __name__ == "__main__":
    make(**json.loads(sys.argv[1]))
