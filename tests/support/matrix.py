"""List which client was tested with which feature, from markers on the tests; docs/agents.md has the table.

`python tests/support/matrix.py` writes the table.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "agents.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- end of matrix -->\n"
FEATURES = ("answers", "streaming", "tools", "history", "rewriting", "in parallel", "asked again", "vLLM", "in a loop")
Test = TypeVar("Test", bound=Callable[..., object])


def shows(client: str, *features: str) -> Callable[[Test], Test]:
    """Mark a test with the feature that it shows; `features_by_client` reads the mark from the source."""
    assert features, f"{client}: name a feature"
    return lambda test: test


def features_by_client() -> dict[str, dict[str, list[str]]]:
    """Return for each client the tests that show a feature, from the source of the tests."""
    clients: dict[str, dict[str, list[str]]] = {}
    for path in sorted((ROOT / "tests" / "agents").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for decorator in getattr(node, "decorator_list", []):
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "shows":
                    client, *features = [ast.literal_eval(argument) for argument in decorator.args]
                    for feature in features:
                        clients.setdefault(client, {}).setdefault(feature, []).append(getattr(node, "name", ""))
    return clients


def table() -> str:
    """Return the table as Markdown."""
    clients = features_by_client()
    unknown = {feature for features in clients.values() for feature in features} - set(FEATURES)
    assert not unknown, f"no feature of the table: {unknown}"
    lines = [f"| client | {' | '.join(FEATURES)} |", "|---|" + ":-:|" * len(FEATURES)]
    for client in sorted(clients, key=str.lower):
        marks = ["yes" if feature in clients[client] else "" for feature in FEATURES]
        lines.append(f"| {client} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return the page with the table in place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"{PAGE.name} has no place for the table: {BEGIN.strip()} and {END.strip()}"
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(table())
