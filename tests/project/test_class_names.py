"""No two classes of the package share a name."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python" / "agentrl_core"
TWICE = {
    "Batch": "the native class and its Python shell",
    "Forest": "the native class and its Python shell",
    "RolloutLog": "the native class and its Python shell",
    "SearchTree": "the native class and its Python shell",
    "Store": "the native class and its Python shell",
    "SumTree": "the native class and its Python shell",
}


def test_class_names_are_unique() -> None:
    files_by_class: dict[str, set[str]] = defaultdict(set)
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files_by_class[node.name].add(str(path.relative_to(PACKAGE)))
    assert len(files_by_class) > 500
    twice = {name: sorted(places) for name, places in files_by_class.items() if len(places) > 1}
    assert not {name: places for name, places in twice.items() if name not in TWICE}
    assert twice.keys() == TWICE.keys(), "a name that no longer needs its reason"
