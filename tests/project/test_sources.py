"""Rules that no linter has. Each test first asserts that it found something to check."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

MOST_CODE_LINES = 425
"""Lines of code per file: a concept has about 400. Docstrings, comments and empty lines do not count."""
MOST_IN_TESTS = 485
DOOR = "crates/agentrl-python/src/enter.rs"
# The escapes keep this file from matching itself.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|Users|root|work|mnt)/\w")
PACKAGE_INDEX = re.compile(r"pypi\.org|pythonhosted\.|crates\.io|artifactor[y]|--(?:extra-)?index-url")


def attributes(source: str, name: str) -> Iterator[str]:
    """Yield every `#[name]` or `#[name(...)]` in Rust source, including nested parentheses."""
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


def code_lines(text: str, suffix: str) -> int:
    """Return the lines of a source that contain code."""
    if suffix not in {".py", ".pyi"}:
        lines = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).splitlines()
        return sum(bool(line.strip()) and not line.lstrip().startswith("//") for line in lines)
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in silent
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - docstrings)


def test_no_file_is_long(tracked: list[Path], root: Path) -> None:
    sources = [path for path in tracked if path.suffix in {".py", ".pyi", ".rs", ".js", ".css"}]
    assert {".py", ".rs", ".js"} <= {path.suffix for path in sources}
    too_long = {}
    for path in sources:
        name = path.relative_to(root)
        most = MOST_IN_TESTS if "tests" in name.parts else MOST_CODE_LINES
        text = text_of(path)
        if text.count("\n") > most and (lines := code_lines(text, path.suffix)) > most:
            too_long[str(name)] = lines
    assert not too_long


def test_lines_of_code_are_counted() -> None:
    python = '"""Doc."""\n\nx = [\n    1,  # one\n]\n# a comment\n\ndef f():\n'
    python += '    """Two\n    lines."""\n    return """a\nb"""\n'
    assert code_lines(python, ".py") == 6
    assert code_lines("//! Doc.\n\n/* a\nb */\nfn f() {\n    // why\n}\n", ".rs") == 2


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
