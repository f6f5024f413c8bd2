"""Shared fixtures of the project's tests: tracked files, and summary lines for measurements."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEASURED = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """Return the files of the project: those that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listing.returncode != 0:
        pytest.skip(f"git cannot list the files of {ROOT}")
    paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


@pytest.fixture(scope="session")
def rust_sources(tracked: list[Path]) -> list[Path]:
    paths = [path for path in tracked if path.suffix == ".rs"]
    assert paths, "no Rust source was found: the project moved away from its tests"
    return paths


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that adds a line to the end of the test run."""
    return request.config.stash.setdefault(MEASURED, []).append


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    for line in terminalreporter.config.stash.get(MEASURED, []):
        terminalreporter.write_line(line)
    return (yield)
