"""Count turns of phrase that make a text hard to read: `python tests/support/english.py` prints the counts.

Each count is per 1 000 words. The budget is twice the highest count of six projects whose docstrings read well (polars,
TRL, verifiers, prime-rl, tinker-cookbook, Inspect).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

PHRASES = {
    "What as a subject": re.compile(r"(?:^|[.;:!?]\s+|\n\s*\n\s*|\*\*\s*)What\s+(?!is\b[^.]*\?)(?:\w)"),
    "say, said": re.compile(r"\b(?:say|says|said)\b", re.IGNORECASE),
    "where": re.compile(r"\bwhere\b", re.IGNORECASE),
    "tell, told": re.compile(r"\b(?:tell|tells|told)\b", re.IGNORECASE),
    "whoever, nobody": re.compile(r"\b(?:whoever|nobody|somebody|everybody)\b", re.IGNORECASE),
    "behind": re.compile(r"\bbehind\b", re.IGNORECASE),
}
BUDGET = {
    "What as a subject": 0.08,
    "say, said": 0.6,
    "where": 3.0,
    "tell, told": 0.26,
    "whoever, nobody": 1.0,
    "behind": 0.8,
}


def prose(text: str) -> str:
    """A docstring or page without code: no examples, code blocks, names in backticks, or links."""
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"(?m)^\s*(?:>>>|\.\.\.).*$", " ", text)
    return re.sub(r"`[^`]*`", "x", text)


def docstrings(paths: Iterable[Path]) -> Iterator[str]:
    """The docstrings of Python files, those of attributes included."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.value.value


def comments(paths: Iterable[Path]) -> Iterator[str]:
    """The comments of Python files, one text for each."""
    for path in paths:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.COMMENT:
                yield token.string.lstrip("# ")


def native_comments(paths: Iterable[Path]) -> Iterator[str]:
    """The comments of Rust and CUDA files that stand on lines of their own, one text for each run of lines."""
    for path in paths:
        for run in re.findall(r"(?m)(?:^[ \t]*//.*\n)+", path.read_text(encoding="utf-8")):
            yield re.sub(r"(?m)^[ \t]*//[/!]? ?", "", run)


def messages(paths: Iterable[Path]) -> Iterator[str]:
    """The constant parts of the messages of raised errors."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                for part in ast.walk(node.exc):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
                        yield part.value


def counts(texts: Iterable[str]) -> tuple[dict[str, float], int]:
    """The counts per 1 000 words, and the number of words."""
    cleaned = [prose(text) for text in texts]
    words = sum(len(re.findall(r"[A-Za-z]+", text)) for text in cleaned)
    matches = {name: sum(len(phrase.findall(text)) for text in cleaned) for name, phrase in PHRASES.items()}
    return {name: 1000 * number / max(words, 1) for name, number in matches.items()}, words


def sources() -> dict[str, Iterable[str]]:
    """The texts that people read, by kind."""
    package = sorted((ROOT / "python/agentrl_core").rglob("*.py"))
    recipes = [path for path in package if "recipes" in path.parts]
    core = [path for path in package if "recipes" not in path.parts]
    native = [*sorted((ROOT / "crates").rglob("*.rs")), *sorted((ROOT / "cuda").rglob("*.cu"))]
    programs = [path for folder in ("bench", "tools", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
    tests = sorted((ROOT / "tests").rglob("*.py"))
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("*.md")]
    return {
        "docstrings": docstrings(core),
        "docstrings of recipes": docstrings(recipes),
        "docstrings of programs": docstrings(programs),
        "docstrings of tests": docstrings(tests),
        "comments": comments([*package, *programs, *tests]),
        "comments of Rust and CUDA": native_comments(native),
        "pages": (path.read_text(encoding="utf-8") for path in pages),
        "messages": messages(package),
    }


if __name__ == "__main__":
    for kind, texts in sources().items():
        per_thousand, words = counts(texts)
        rates = ", ".join(f"{name} {number:.2f}" for name, number in per_thousand.items())
        print(f"{kind}, {words} words: {rates}")  # noqa: T201 -- a program too
