"""The record of all tests covers a commit's code, or gives the reason why not."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "full_record.py"))
TODAY = {path: f"hash of {path}" for path in TOOL["COVERED"]}
COUNTS = {"run": 3, "failed": 0, "skipped": 1}
RECORD = {"rust": COUNTS, "python": COUNTS, "hashes": TODAY}


def test_a_record_covers_the_code_it_was_made_of() -> None:
    assert TOOL["gaps"](RECORD, TODAY) == []


@pytest.mark.parametrize(
    ("record", "gap"),
    [
        (None, "there is no record"),
        (RECORD | {"hashes": TODAY | {"crates": "older"}}, "crates has changed since"),
        (RECORD | {"hashes": {"tests": TODAY["tests"]}}, "python has changed since"),
        (RECORD | {"rust": COUNTS | {"failed": 2}}, "2 rust tests failed"),
        (RECORD | {"python": COUNTS | {"run": 0}}, "no python test ran"),
    ],
)
def test_gaps_in_a_test_record_are_reported(record: dict | None, gap: str) -> None:
    assert gap in TOOL["gaps"](record, TODAY)


def test_tests_are_counted_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    report.write_text(
        '<testsuites><testsuite tests="5" failures="1" errors="1" skipped="2"/><testsuite tests="2" failures="0"/>'
        "</testsuites>"
    )
    assert TOOL["counts"](report) == {"run": 5, "failed": 2, "skipped": 2}


def test_covered_paths_exist() -> None:
    assert all((ROOT / path).exists() for path in TOOL["COVERED"])
