"""A Protocol has at least two classes in the package, or a reason."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python" / "agentrl_core"
ALONE = {
    "MultiEpisode": "users implement it",
    "OutputBuffers": "a part of `model.buffers.PackBuffers`; `operators` is below `model`",
    "Picture": "a part of `env.Image`; `model` imports no environment",
    "RecipeHooks": "a part of `Recipe`; `update` is below `recipe`",
    "TrainingProgress": "`cli._run_display.RunDisplay` or a user's display; `train` is below `cli`",
    "_Dataset": "a class of reasoning-gym",
}
"""Protocols with one class in the package or none, with the reason."""


def classes() -> dict[str, ast.ClassDef]:
    """Return the classes of the package by name; two of one name are a native class and its shell."""
    return {
        node.name: node
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }


def bases(node: ast.ClassDef) -> list[str]:
    """Return the names of a class's bases, without their modules and type parameters."""
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]


def members(node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> set[str]:
    """Return the names of the methods and attributes of a class, with those of its bases in the package."""
    own = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign)}
    own |= {ast.unparse(target) for part in node.body if isinstance(part, ast.Assign) for target in part.targets}
    own |= {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and ast.unparse(part.value) == "self"
    }
    return own.union(*(members(known[base], known) for base in bases(node) if base in known))


def test_protocols_have_several_classes() -> None:
    known = classes()
    protocols = {name: node for name, node in known.items() if "Protocol" in bases(node)}
    assert len(protocols) > 10
    others = [members(node, known) for name, node in known.items() if name not in protocols]
    few = {name for name, node in protocols.items() if sum(members(node, known) <= other for other in others) < 2}
    assert few, "a search that finds nothing"
    assert few <= ALONE.keys(), f"annotate with the class itself, or give a reason: {sorted(few - ALONE.keys())}"
    assert ALONE.keys() <= protocols.keys(), "a reason without a Protocol"
