"""Draw names, first lines and messages at random, to be read by a person who has not seen the code.

    python tests/support/drawn.py [SEED] [COUNT]

prints `COUNT` file names, first lines of public docstrings, and messages of raised errors. A name or a line is good if
a reader can match it to its purpose, a message if it names argument, value and remedy. Equal seeds draw equal ones.
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "agentrl_core"


def paths() -> list[Path]:
    """Return the files of the package that are not recipes."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "recipes" not in path.parts and path.stem != "__init__"]


def first_lines() -> Iterator[str]:
    """Yield the first lines of the docstrings of public classes and functions, with their locations."""
    for path in paths():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                text = ast.get_docstring(node) or "-"
                yield f"{path.relative_to(PACKAGE)} {node.name}: {text.splitlines()[0]}"


def errors() -> Iterator[str]:
    """Yield the expressions of raised errors, with their locations."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node.exc)}"


def sample(seed: int, count: int) -> dict[str, list[str]]:
    """Return `count` entries of each kind."""
    kinds = {
        "files": [str(path.relative_to(PACKAGE)) for path in paths()],
        "first lines": list(first_lines()),
        "messages": list(errors()),
    }
    chance = random.Random(seed)
    return {kind: sorted(chance.sample(entries, min(count, len(entries)))) for kind, entries in kinds.items()}


if __name__ == "__main__":
    numbers = [int(value) for value in sys.argv[1:3]]
    for kind, lines in sample(*(numbers + [0, 60][len(numbers) :])).items():
        print(f"\n{kind}\n" + "\n".join(lines))  # noqa: T201 -- a program
