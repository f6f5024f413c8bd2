"""Compare the speed of a bench with that at a commit: build both, and run them in turn on the same machine.

    python bench/compare.py BASE [BENCH] [--rounds 10] [-- OPTION ...]

BASE is a commit or branch. BENCH is a script of this folder without its ending, by default `group_advantage`. Options
after `--` are passed to it. The package of BASE is checked out and compiled under `target/compare`, and reused the next
time; the package of this tree is copied and compiled beside it. Both run the bench of this tree in processes of their
own, in alternating order, so that other load on the machine affects both equally.

For each of our times in the bench's record (`..._ms`), the table has the medians and the ratio base / this tree: above
1, this tree is faster. The ratio is the geometric mean over rounds, with its 95 % interval (studentised bootstrap with
10 000 resamples of the rounds). An interval that contains 1 shows no difference.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "target" / "compare"
BINDING = "_core.abi3.so"
RESAMPLES = 10_000

Times = dict[str, float]
"""Milliseconds by line and name of a record."""


def times_of(record: dict[str, Any]) -> Times:
    """Return our times in a record; lines are identified by their texts, and numbered if the texts are equal."""
    times: Times = {}
    seen: Counter[str] = Counter()
    for line in record["lines"]:
        label = ", ".join(value for value in line.values() if isinstance(value, str))
        seen[label] += 1
        for name, value in line.items():
            if name.endswith("_ms") and name != "peer_ms":
                times[f"{label} #{seen[label]} {name.removesuffix('_ms')}"] = float(value)
    return times


def ratio(base: NDArray[np.float64], head: NDArray[np.float64], seed: int = 0) -> tuple[float, float, float]:
    """Return the geometric mean of base / head over pairs, and its 95 % interval (studentised bootstrap)."""
    logs = np.log(base) - np.log(head)
    mean, spread = logs.mean(), logs.std(ddof=1)
    if spread < 1e-12:  # all rounds are equal
        return (float(np.exp(mean)),) * 3
    drawn = logs[np.random.default_rng(seed).integers(0, len(logs), (RESAMPLES, len(logs)))]
    spreads = drawn.std(axis=1, ddof=1)
    # With few rounds the plain bootstrap is too narrow: resample the mean in units of its own spread.
    away = (drawn.mean(axis=1) - mean)[spreads > 0] / spreads[spreads > 0]
    low, high = mean - np.quantile(away, [0.975, 0.025]) * spread
    return float(np.exp(mean)), float(np.exp(low)), float(np.exp(high))


def table(base: list[Times], head: list[Times]) -> list[str]:
    """Return a line for each time that both sides have in every round."""
    names = [name for name in head[0] if all(name in times for times in (*base, *head))]
    if not names:
        raise SystemExit("the bench wrote no time (`..._ms`) that both sides have; give one that does")
    lines = [f"{'base ms':>10} {'here ms':>10} {'ratio':>7}  95 %"]
    for name in names:
        before, now = (np.array([times[name] for times in side]) for side in (base, head))
        mean, low, high = ratio(before, now)
        verdict = "" if low <= 1 <= high else "  faster" if low > 1 else "  SLOWER"
        medians = f"{np.median(before):10.3f} {np.median(now):10.3f}"
        lines.append(f"{medians} {mean:7.3f}  [{low:.3f}, {high:.3f}]{verdict}  {name}")
    return lines


def call(*command: str | Path, folder: Path = ROOT, **environment: str) -> str:
    """Return the output of a command."""
    completed = subprocess.run(  # noqa: S603 -- the programs below
        command, cwd=folder, env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE, text=True
    )
    return completed.stdout


def built(source: Path, side: Path, target: Path) -> None:
    """Install the package of a source tree into a folder, with its binding, optimised like the wheel.

    Each side has its own `target`: cargo identifies crates by name, wherever they are, and would link the last compiled
    one into both.
    """
    command = ("cargo", "build", "--release", "--locked", "--package", "agentrl-python", "--lib")
    call(*command, folder=source, CARGO_TARGET_DIR=str(target), PYO3_BUILD_EXTENSION_MODULE="1")
    shutil.copytree(source / "python", side / "python", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (library,) = (path for path in (target / "release").glob("lib_core.*") if path.suffix in (".so", ".dylib"))
    shutil.copy2(library, side / "python" / "agentrl_core" / BINDING)


def base_of(revision: str) -> Path:
    """Return the folder of a commit's package; build it if it is missing."""
    side = PLACE / call("git", "rev-parse", "--short=12", f"{revision}^{{commit}}").strip()
    if not (side / "python" / "agentrl_core" / BINDING).exists():
        shutil.rmtree(side, ignore_errors=True)
        source, target = PLACE / "source", PLACE / "cargo-base"
        if not target.exists():
            # Crates of others are compiled once; in a fresh checkout ours are newer, and are compiled again.
            shutil.copytree(PLACE / "cargo-here", target)
        call("git", "worktree", "add", "--force", "--detach", source, revision)
        try:
            built(source, side, target)
        finally:
            call("git", "worktree", "remove", "--force", source)
    return side


def run(side: Path, bench: str, options: list[str]) -> Times:
    """Run a bench once with the package of a side."""
    environment = {"PYTHONPATH": str(side / "python"), "BENCH_LEAST_SECONDS": "0"}
    call(sys.executable, side / "bench" / f"{bench}.py", *options, **environment)
    (record,) = (side / "bench" / "record").glob(f"*/{bench}.json")
    return times_of(json.loads(record.read_text(encoding="utf-8")))


def main() -> None:
    """Build both sides, run them in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("bench", nargs="?", default="group_advantage")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    if not (ROOT / "bench" / f"{options.bench}.py").exists():
        parser.error(f"there is no bench/{options.bench}.py")
    if options.rounds < 3:
        parser.error(
            f"--rounds {options.rounds} gives no interval: two rounds drawn again are the same two; give 3 or more"
        )
    head = PLACE / "here"
    shutil.rmtree(head, ignore_errors=True)
    built(ROOT, head, PLACE / "cargo-here")
    sides = (base_of(options.base), head)
    for side in sides:
        shutil.rmtree(side / "bench", ignore_errors=True)
        shutil.copytree(ROOT / "bench", side / "bench", ignore=shutil.ignore_patterns("record", "__pycache__"))
    times: dict[Path, list[Times]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            times[side].append(run(side, options.bench, arguments[end + 1 :]))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print(f"{options.bench}: {options.base} beside this tree, {options.rounds} rounds")
    print("\n".join(table(times[sides[0]], times[sides[1]])))


if __name__ == "__main__":
    main()
