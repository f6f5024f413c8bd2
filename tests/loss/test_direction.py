"""Arrows between the folders of losses, models and updates point one way, those of types and functions included."""

from __future__ import annotations

import ast
from pathlib import Path

import agentrl_core

ROOT = Path(agentrl_core.__file__).parent


def imports(folder: str) -> set[str]:
    """The folders that the modules of a folder import from, anywhere in them."""
    names: set[str] = set()
    for path in sorted((ROOT / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names.add(node.module)
    return {name.split(".")[1] for name in names if name.startswith("agentrl_core.")}


def test_losses_stand_on_models_and_updates_on_both() -> None:
    assert "model" in imports("loss")
    assert "update" not in imports("loss")
    assert imports("model").isdisjoint({"loss", "update"})
    assert {"loss", "model"} <= imports("update")
