"""Records: a line of JSON for each run, in a file for each study. Recorded runs never run again."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "bench" / "record" / "evidence"
SOURCES = ("python", "crates", "bench/evidence", "bench/seeing_model.py", "bench/screens.py")
"""Folders and files whose code affects the result of a run."""


@dataclass(frozen=True)
class Run:
    """One run: an arm in a world with a seed."""

    world: str
    arm: str
    seed: int


class Records:
    """The records of a study.

    Args:
        path: of the file; an incomplete last line is dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[Run, dict[str, Any]] = {}
        if path.exists():
            text = path.read_text(encoding="utf-8")
            complete_lines = text[: text.rfind("\n") + 1]
            if complete_lines != text:
                path.write_text(complete_lines, encoding="utf-8")
            for line in complete_lines.splitlines():
                record = json.loads(line)
                self._lines[Run(record["world"], record["arm"], record["seed"])] = record

    def __contains__(self, run: object) -> bool:
        return run in self._lines

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._lines.values())

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, run: Run) -> dict[str, Any] | None:
        """Return the record of a run, or None."""
        return self._lines.get(run)

    def add(self, run: Run, fields: dict[str, Any]) -> None:
        """Append the record of a run, and wait until it is on disk."""
        record = {"world": run.world, "arm": run.arm, "seed": run.seed, **fields}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._lines[run] = record


def study(name: str) -> Records:
    """Return the records of a study, such as `screening` or `claims/gigpo`."""
    return Records(FOLDER / f"{name}.jsonl")


def version() -> dict[str, Any]:
    """Return the commit that is checked out, and a digest of uncommitted changes to code that affects runs, if any."""
    fields: dict[str, Any] = {"commit": git("rev-parse", "HEAD").strip()}
    changes = git("diff", "HEAD", "--", *SOURCES)
    if changes:
        fields["changes"] = hashlib.sha256(changes.encode()).hexdigest()[:12]
    return fields


def git(*arguments: str) -> str:
    """Return the output of git in this repository.

    Raises:
        CalledProcessError: git failed; this is not a clone, or there is no such commit.
    """
    return subprocess.run(  # noqa: S603 -- our own arguments
        ["git", "-C", str(ROOT), *arguments],  # noqa: S607 -- the git of the path
        check=True,
        capture_output=True,
        text=True,
    ).stdout
