"""Install a wheel in empty environments, and run tests/smoke.py with NumPy alone in each.

    python tools/try_wheel.py WHEEL [--python 3.11 3.12 3.13 3.14] [--extras polars agents ... | --extras all]

Each version of Python, or path of an interpreter, gets an environment of its own, which is removed afterwards. uv
fetches interpreters that it does not find. With `--extras`, each extra is installed alone into an environment of the
first version, and `tools/extras.py` does one small thing with its packages. The exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

from uv import find_uv_bin

ROOT = Path(__file__).parents[1]
SMOKE = ROOT / "tests" / "smoke.py"
EXTRAS = ROOT / "tools" / "extras.py"


def extras_of(wheel: Path) -> list[str]:
    """Return the extras in the metadata of a wheel."""
    with ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    return sorted(line.split(": ", 1)[1] for line in lines if line.startswith("Provides-Extra: "))


def tried(python: str, requirement: str, program: list[str | Path]) -> str:
    """Install a requirement into an empty environment and run a program in it; return its last line, or the error."""
    uv = find_uv_bin()
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "bin" / "python"
        steps: Iterable[list[str | Path]] = (
            [uv, "venv", "--quiet", "--python", python, folder],
            [uv, "pip", "install", "--quiet", "--python", inside, requirement],
            [inside, "-I", *program],
        )
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False, cwd=folder)
            if done.returncode:
                return "failed: " + (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
        version = subprocess.run([inside, "-V"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{version}: {done.stdout.strip().splitlines()[-1]}"


def main() -> int:
    """Try the wheel and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="+", default=["3.11", "3.12", "3.13", "3.14"], help="versions to try")
    parser.add_argument("--extras", nargs="+", default=[], help="extras to install one by one, or all")
    options = parser.parse_args()
    wheel = options.wheel.resolve()
    declared = extras_of(wheel)
    extras = declared if options.extras == ["all"] else options.extras
    if unknown := {*extras} - {*declared}:
        parser.error(f"--extras: the wheel has no {', '.join(sorted(unknown))}; it has {', '.join(declared)}")
    trials: list[tuple[str, str, list[str | Path]]] = [(version, str(wheel), [SMOKE]) for version in options.python]
    trials += [(options.python[0], f"{wheel}[{extra}]", [EXTRAS, extra]) for extra in extras]
    failed = False
    for python, requirement, program in trials:
        outcome = tried(python, requirement, program)
        failed |= outcome.startswith("failed")
        print(f"{requirement.partition('.whl')[2] or 'NumPy alone':<16} {outcome}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
