"""Write THIRD_PARTY_LICENSES: third-party packages inside the wheel, and their licences.

    python tools/third_party.py [--check]

Run it after a change of Cargo.lock, after `cargo fetch`; it needs no network. `--check` writes nothing and exits with 1
if the file is out of date.

The wheel contains the Rust crates that are linked into the binding; procedural macros, build scripts and crates of
tests are not in it. If a crate offers several licences, the script takes Apache-2.0, the project's own, otherwise MIT.
The page of a run (JavaScript and CSS), the Python package and the CUDA kernels are the project's own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FILE = ROOT / "THIRD_PARTY_LICENSES"
TARGETS = (
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-musl",
    "aarch64-apple-darwin",
)
"""Systems of our wheels; each needs a few crates that others do not."""
PREFERRED = ("Apache-2.0", "MIT")
"""Preferred licences, in this order."""
HEAD = """\
Third-party software inside the wheels of agentrl_core
======================================================

agentrl_core itself is under Apache-2.0: see LICENSE. The compiled module contains these Rust crates, and the standard
library of Rust (MIT OR Apache-2.0; Apache-2.0 is taken). `tools/third_party.py` makes this file from Cargo.lock.
"""


class Crate(NamedTuple):
    """A linked crate, with its licence as an SPDX expression."""

    name: str
    version: str
    licence: str


def linked(target: str) -> set[Crate]:
    """Return third-party crates that are linked into the binding on a system.

    Raises:
        subprocess.CalledProcessError: a crate was not downloaded, or Cargo.lock is out of date.
    """
    command = ["cargo", "tree", "--offline", "--locked", "--package", "agentrl-python", "--target", target]
    command += ["--edges", "normal,no-proc-macro", "--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    crates = set()
    for line in listing.splitlines():
        package, _, licence = line.partition("|")
        name, version = package.split()[:2]
        if not name.startswith("agentrl-"):
            crates.add(Crate(name, version.removeprefix("v"), licence))
    return crates


def preferred(licence: str) -> str:
    """Return the preferred licence among the alternatives of an expression; `AND` keeps all of its parts."""
    alternatives = re.split(r" OR |/", licence)
    return next((name for name in PREFERRED if name in alternatives), alternatives[0])


def folders() -> dict[tuple[str, str], Path]:
    """Return the folder of each downloaded crate, by name and version."""
    command = ["cargo", "metadata", "--offline", "--locked", "--format-version", "1"]
    command += [word for target in TARGETS for word in ("--filter-platform", target)]
    listing = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    return {(each["name"], each["version"]): Path(each["manifest_path"]).parent for each in listing["packages"]}


def text_of(folder: Path, licence: str) -> str:
    """Return the text of a licence in the folder of a crate.

    Raises:
        FileNotFoundError: the crate has no such file; take its text from its repository.
    """
    files = [path for path in sorted(folder.iterdir()) if path.name.upper().startswith(("LICENSE", "LICENCE"))]
    of_licence = [path for path in files if path.stem.upper().endswith(f"-{licence.partition('-')[0]}".upper())]
    for path in (*of_licence, *(path for path in files if "-" not in path.stem)):
        return path.read_text(encoding="utf-8")
    raise FileNotFoundError(
        f"{folder.name} has no file with the licence {licence}; take the text from the repository of the crate"
    )


def licence_text() -> str:
    """Return the text of the file."""
    crates = sorted(set().union(*map(linked, TARGETS)))
    places = folders()
    rows = [f"  {crate.name} {crate.version}: {crate.licence}" for crate in crates]
    texts: dict[str, list[str]] = {}
    for crate in crates:
        folder = places[crate.name, crate.version]
        parts = [text_of(folder, part) for part in preferred(crate.licence).split(" AND ") if part != PREFERRED[0]]
        parts += [path.read_text(encoding="utf-8") for path in sorted(folder.glob("NOTICE*"))]
        for part in parts:
            tidy = "\n".join(line.rstrip() for line in part.strip().splitlines())
            texts.setdefault(tidy, []).append(f"{crate.name} {crate.version}")
    sections = [HEAD + "\n" + "\n".join(rows)]
    sections += [f"{', '.join(names)}\n\n{text}" for text, names in texts.items()]
    apache = (ROOT / "LICENSE").read_text(encoding="utf-8").strip("\n")
    sections.append(f"Apache-2.0, of all crates that offer it\n\n{apache}")
    return f"\n\n{'=' * 78}\n\n".join(sections) + "\n"


def main() -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the file is out of date")
    check = parser.parse_args().check
    text = licence_text()
    if not check:
        FILE.write_text(text, encoding="utf-8")
        return 0
    if FILE.exists() and FILE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{FILE.name} is out of date: run python tools/third_party.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
