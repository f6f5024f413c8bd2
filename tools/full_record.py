"""Run all tests and record that they ran, or check that the record covers today's code.

    python tools/full_record.py run      as `make test-full` does
    python tools/full_record.py check    as `make release` does first

The record, `bench/record/full.json`, holds the commit, the git hash of each folder that the tests cover, the numbers of
tests and the duration. It covers the code as long as these hashes are those of HEAD, whatever else was committed since.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "bench" / "record" / "full.json"
COVERED = ("Cargo.lock", "crates", "cuda", "pyproject.toml", "python", "requirements", "tests")
RUST_REPORT = ROOT / "target" / "nextest" / "full" / "junit.xml"
PYTHON_REPORT = ROOT / "target" / "full-python.xml"
SETTINGS = {"OMP_NUM_THREADS": "1", "AGENTRL_FULL_TESTS": "1"}
"""Settings of the full run: more odd values, and every causal type of transformers."""


def git(*arguments: str) -> str:
    """Return the output of git in the root of the project."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def hashes() -> dict[str, str]:
    """Return the git hash of each covered folder or file at HEAD.

    Raises:
        SystemExit: one of them has uncommitted changes.
    """
    changed = git("status", "--porcelain", "--", *COVERED)
    if changed:
        raise SystemExit(f"full_record: commit these first, since a record is of a commit:\n{changed}")
    return {path: git("rev-parse", f"HEAD:{path}") for path in COVERED}


def counts(report: Path) -> dict[str, int]:
    """Return how many tests of a JUnit report ran, failed and were skipped."""
    suites = list(ET.parse(report).getroot().iter("testsuite"))
    total = {
        key: sum(int(suite.get(key) or 0) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    }
    return {
        "run": total["tests"] - total["skipped"],
        "failed": total["failures"] + total["errors"],
        "skipped": total["skipped"],
    }


def gaps(record: dict[str, Any] | None, today: dict[str, str]) -> list[str]:
    """Return why a record does not cover the code of `today`; empty if it does."""
    if record is None:
        return ["there is no record"]
    problems = [f"{path} has changed since" for path in COVERED if record["hashes"].get(path) != today[path]]
    for language in ("rust", "python"):
        if record[language]["failed"]:
            problems.append(f"{record[language]['failed']} {language} tests failed")
        if not record[language]["run"]:
            problems.append(f"no {language} test ran")
    return problems


def run(workers: int) -> None:
    """Run all tests and write the record, whether they pass or not.

    Raises:
        SystemExit: a test failed, or files that the record covers are not committed.
    """
    today, started = hashes(), time.monotonic()
    for report in (RUST_REPORT, PYTHON_REPORT):
        report.unlink(missing_ok=True)
    pytest = [sys.executable, "-m", "pytest", f"--numprocesses={workers}", "--dist=worksteal", "--pyargs"]
    for command in (
        ["cargo", "nextest", "run", "--workspace", "--locked", "--profile", "full", "--run-ignored", "all"],
        ["cargo", "test", "--doc", "--workspace", "--locked"],
        [*pytest, f"--junitxml={PYTHON_REPORT}", "./tests", "agentrl_core"],
    ):
        print(f"\n==> {' '.join(command)}", flush=True)
        subprocess.run(command, cwd=ROOT, check=False, env=os.environ | SETTINGS)
    record: dict[str, Any] = {
        "commit": git("rev-parse", "HEAD"),
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "seconds": round(time.monotonic() - started),
        "rust": counts(RUST_REPORT),
        "python": counts(PYTHON_REPORT),
        "hashes": today,
    }
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    print(f"\nwrote {RECORD.relative_to(ROOT)}: {record['rust']} in Rust, {record['python']} in Python")
    if record["rust"]["failed"] or record["python"]["failed"]:
        raise SystemExit("full_record: tests failed; see above")


def check() -> None:
    """Refuse a release if the record does not cover its code.

    Raises:
        SystemExit: the record does not cover the code; the message has the reasons.
    """
    record = json.loads(RECORD.read_text()) if RECORD.exists() else None
    problems = gaps(record, hashes())
    if problems:
        raise SystemExit(
            f"full_record: {RECORD.relative_to(ROOT)} does not cover this code: {'; '.join(problems)}; "
            "run `make test-full` and commit the record"
        )
    print(f"{RECORD.relative_to(ROOT)} covers this code")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "check"])
    parser.add_argument("--workers", type=int, default=2, help="how many processes run the Python tests")
    options = parser.parse_args(arguments)
    if options.action == "run":
        run(options.workers)
    else:
        check()


if __name__ == "__main__":
    main()
