"""Check with pyright that every export of the package has a known type: `make public-types`.

    python tools/public_types.py

Runs `basedpyright --verifytypes` on the installed package and prints each symbol whose type is unknown, with the
reason. Unknown types from other packages do not count, nor does a base class that derives from `Changing`, which is
`Any` to type checkers on purpose: an option of type `float` accepts a `Schedule`. The exit status is 1 if any remain.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import agentrl_core

ON_PURPOSE = "    _Number = Any\n"
"""The line of `component/schedule.py` that makes type checkers treat a changing value as a number."""


def report() -> dict[str, Any]:
    """Run pyright on a copy of the package in which changing values are objects: only other unknown types remain.

    Raises:
        SystemExit: pyright, or the line to replace, is missing.
    """
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "agentrl_core"
        shutil.copytree(
            Path(agentrl_core.__file__).parent, package, ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
        changing = package / "component" / "schedule.py"
        text = changing.read_text(encoding="utf-8")
        if text.count(ON_PURPOSE) != 1:
            raise SystemExit(f"public_types: {changing.name} has no line {ON_PURPOSE.strip()!r}: change ON_PURPOSE")
        changing.write_text(text.replace(ON_PURPOSE, ON_PURPOSE.replace("Any", "object")), encoding="utf-8")
        here = Path(sys.executable).parent
        environment = {**os.environ, "PYTHONPATH": folder, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
        command: list[str | Path] = [
            here / "basedpyright",
            "--verifytypes",
            "agentrl_core",
            "--ignoreexternal",
            "--outputjson",
        ]
        completed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if not completed.stdout.startswith("{"):
        raise SystemExit(f"public_types: pyright ended without a report: {completed.stderr or completed.stdout}")
    return cast("dict[str, Any]", json.loads(completed.stdout))


def main() -> int:
    """Print the unknown types."""
    symbols = [each for each in report()["typeCompleteness"]["symbols"] if each["isExported"]]
    # An ambiguous type is known: without a declaration, other type checkers may infer another one.
    unknown = [each for each in symbols if not each["isTypeKnown"] and not each["isTypeAmbiguous"]]
    for each in unknown:
        reasons = [line["message"].splitlines()[0] for line in each["diagnostics"] if line["severity"] == "error"]
        print(f"{each['name']}: {'; '.join(reasons)}")
    print(f"{len(unknown)} of {len(symbols)} public symbols have an unknown type")
    return int(bool(unknown))


if __name__ == "__main__":
    sys.exit(main())
