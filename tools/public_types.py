"""Check with pyright that the public names have known types: `make public-types`.

    python tools/public_types.py

Runs `basedpyright --verifytypes` on the installed package and prints each public symbol whose type is unknown, with the
reason. Types that packages of others leave open do not count, nor does a base class that derives from `Changing`, which
is `Any` to type checkers on purpose: an option of type `float` accepts a `Schedule`. The exit status is 1 if any
remains.
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

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

from public_names import public_names  # noqa: E402 - the one list of what is public

ON_PURPOSE = "    _Number = Any\n"
"""The line of `component/schedule.py` that makes a changing value a number to type checkers."""


def report() -> dict[str, Any]:
    """Run pyright on a copy of the package in which changing values are objects: only other unknown types remain.

    Raises:
        SystemExit: the line that is replaced, or pyright, is not there.
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
        command = [here / "basedpyright", "--verifytypes", "agentrl_core", "--ignoreexternal", "--outputjson"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        raise SystemExit(f"public_types: pyright ended without a report: {done.stderr or done.stdout}")
    return cast("dict[str, Any]", json.loads(done.stdout))


def public(symbols: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The symbols with an unknown type that are a public name or a member of one."""
    homes: set[str] = set()
    for module, names in public_names().items():
        for name in names:
            value = getattr(sys.modules[module], name)
            homes.add(f"{getattr(value, '__module__', module)}.{getattr(value, '__qualname__', name)}")
            homes.add(f"{module}.{name}")
    unknown = [
        each for each in symbols if each["isExported"] and not each["isTypeKnown"] and not each["isTypeAmbiguous"]
    ]
    return [
        each for each in unknown if any(each["name"] == home or each["name"].startswith(f"{home}.") for home in homes)
    ]


def main() -> int:
    """Print the unknown types."""
    symbols = report()["typeCompleteness"]["symbols"]
    found = public(symbols)
    for each in found:
        reasons = "; ".join(
            line["message"].splitlines()[0] for line in each["diagnostics"] if line["severity"] == "error"
        )
        print(f"{each['name']}: {reasons}")
    print(f"{len(found)} public symbols with an unknown type, of {len(symbols)} symbols")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
