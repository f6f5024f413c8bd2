"""Make games of TextWorld in a folder: `python bench/evidence/textworld_games.py FOLDER LENGTH:SEED ...`.

Some games depend on the order of a set, so the program must run with `PYTHONHASHSEED=0`. Existing games are kept;
another process may make the same one.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import textworld
from textworld.challenges.tw_coin_collector import coin_collector


def make(folder: Path, length: int, seed: int) -> None:
    """Make rooms in a row whose coin is `length` commands away, in the words of TextWorld's grammar `basic`."""
    options = textworld.GameOptions()
    options.seeds, options.grammar.theme = seed, "basic"
    name = f"{length}-{seed}"
    with tempfile.TemporaryDirectory(dir=folder) as place:
        options.path = f"{place}/{name}.z8"
        game = coin_collector.make({"level": length}, options)
        textworld.generator.compile_game(game, options)
        for ending in ("json", "z8"):  # the game itself last: if it exists, its other files do
            Path(place, f"{name}.{ending}").rename(folder / f"{name}.{ending}")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.exit("textworld_games: set PYTHONHASHSEED=0, so that equal seeds give equal games")
    home = Path(sys.argv[1])
    home.mkdir(parents=True, exist_ok=True)
    for length, seed in (map(int, each.split(":")) for each in sys.argv[2:]):
        if not (home / f"{length}-{seed}.z8").is_file():
            make(home, length, seed)
