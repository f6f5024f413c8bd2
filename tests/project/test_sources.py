"""Rules that no linter knows. Each test first asserts that it found something to look at."""

import re
from collections.abc import Iterator
from pathlib import Path

MOST_LINES = 500
DOOR = "crates/agentrl-python/src/enter.rs"
# The escapes keep this file from finding itself.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|Users|root|work|mnt)/\w")
PACKAGE_INDEX = re.compile(r"pypi\.org|pythonhosted\.|crates\.io|artifactor[y]|--(?:extra-)?index-url")


def attributes(source: str, name: str) -> Iterator[str]:
    """Every `#[name]` or `#[name(...)]` in Rust source, nested parentheses included."""
    for start in re.finditer(rf"#\[(?:\w+::)*{name}\b", source):
        end, depth = start.end(), 1
        while depth:
            depth += {"[": 1, "]": -1}.get(source[end], 0)
            end += 1
        yield source[start.start() : end]


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # a picture
        return ""


def test_no_file_is_long(tracked: list[Path], root: Path) -> None:
    sources = [path for path in tracked if path.suffix in {".py", ".pyi", ".rs", ".js", ".css"}]
    assert {".py", ".rs", ".js"} <= {path.suffix for path in sources}
    lengths = {str(path.relative_to(root)): len(text_of(path).splitlines()) for path in sources}
    assert not {name: lines for name, lines in lengths.items() if lines > MOST_LINES}


def test_every_class_of_the_binding_is_frozen(rust_sources: list[Path]) -> None:
    found = [attribute for path in rust_sources for attribute in attributes(text_of(path), "pyclass")]
    assert found, "no #[pyclass] was found"
    assert not [attribute for attribute in found if not re.search(r"\bfrozen\b", attribute)]


def test_one_door_releases_the_interpreter(rust_sources: list[Path], root: Path) -> None:
    release = re.compile(r"\.detach\(|allow_threads")
    doors = {str(path.relative_to(root)) for path in rust_sources if release.search(text_of(path))}
    assert doors == {DOOR}


def test_no_machine_and_no_package_index_is_named(tracked: list[Path], root: Path) -> None:
    # The lock file names the registry of every Rust package.
    texts = {path.relative_to(root): text_of(path) for path in tracked if path.name != "Cargo.lock"}
    assert Path("Makefile") in texts
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line) or PACKAGE_INDEX.search(line)
    ]
    assert not found
