"""Imports point down the list of layers, without cycles; imports of types, in functions and by text count too."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from import_graph import Arrow, circle

import agentrl_core

ROOT = "agentrl_core"
LAYERS = (  # a module imports modules above its line, and those of its own folder
    {"_core", "exceptions"},
    {"renames"},
    {"_util"},
    {"operators", "stats"},
    {"data"},
    {"component", "model", "env"},
    {"engine"},
    *(
        {phase} for phase in ("select", "rollout", "reward", "advantage", "weight", "loss", "replay", "schedule")
    ),  # a later phase may import earlier ones
    {"update"},
    {"recipe"},
    {"recipes", "collect"},
    {"integrations"},
    {"agents", "train"},
    {"view"},
    {"cli"},
    {"__main__", ROOT},
)
LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names}

UPWARD = {  # allowed, with the reason
    ("env.external_agents", "agents.in_process_endpoint"): "it runs agent programs, and serves them the endpoint",
}
BY_TEXT = {  # modules that import a module by a text
    "_util.lazy",
    "_util.lazy_torch",
    "cli",  # the command
    "cli._recipe_page",  # the recipe
    "component.component",  # the phase, or the user's own component
    "recipe",  # the default component of a phase
    "recipes",  # the recipe
    "train.options",  # the environment of the user
    "env.external_agents",
}


def modules(package: Path) -> dict[str, Path]:
    """Return the sources by dotted name below the package; the package itself has its own."""
    names = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts) or ROOT] = path
    return names


def imported_by_text(node: ast.AST) -> str | None:
    """Return the constant text that a call of `import_module` names; "" if the text is computed."""
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in ("import_module", "__import__"):
        return None
    first = node.args[0]
    return str(first.value) if isinstance(first, ast.Constant) else ""


def imported(source: str, known: set[str], named: dict[str, str]) -> Iterator[str]:
    """Yield the modules of the package that some source imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif text := imported_by_text(node):
            names = [text]
        else:
            continue
        for name in names:
            if name.partition(".")[0] != ROOT:
                continue
            inside = name.removeprefix(ROOT).removeprefix(".")
            inside = named.get(inside, inside)
            while inside and inside not in known:  # a name in a module
                inside = inside.rpartition(".")[0]
            yield inside or ROOT


def arrows_of(sources: dict[str, str], named: dict[str, str]) -> set[Arrow]:
    known = {*sources, "_core"}
    return {
        (name, target)
        for name, source in sources.items()
        for target in imported(source, known, named)
        if target != name
    }


def upward(arrows: set[Arrow]) -> set[Arrow]:
    """Return the imports that do not point down: to a higher layer, or to another folder of the same."""

    def folder(name: str) -> str:
        return name.partition(".")[0]

    return {
        (source, target)
        for source, target in arrows
        if folder(source) != folder(target) and LAYER_OF[folder(target)] >= LAYER_OF[folder(source)]
    }.difference(UPWARD)


@pytest.fixture(scope="module")
def arrows() -> set[Arrow]:
    package = Path(__file__).parents[2] / "python" / ROOT
    sources = {name: path.read_text(encoding="utf-8") for name, path in modules(package).items()}
    named = {name: home.partition(":")[0] for name, home in agentrl_core._HOMES.items()}
    edges = arrows_of(sources, named)
    assert {("collect.collector", "recipe"), ("update.minibatches", "_core"), (ROOT, "data.batch")} <= edges
    assert len(edges) > 100
    return edges


def test_every_module_has_a_layer(arrows: set[Arrow]) -> None:
    folders = {name.partition(".")[0] for arrow in arrows for name in arrow}
    assert folders <= LAYER_OF.keys()
    assert not {folder for folder in folders if folder.startswith("_")} - {"_core", "_util", "__main__"}


def test_arrows_point_down(arrows: set[Arrow]) -> None:
    assert upward(arrows) == set()
    assert arrows >= UPWARD.keys(), "an exception that is no longer needed"


def test_few_modules_import_by_text() -> None:
    package = Path(__file__).parents[2] / "python" / ROOT
    text_imports = {
        name
        for name, path in modules(package).items()
        if any(imported_by_text(node) is not None for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert text_imports == BY_TEXT


def test_imports_have_no_cycle(arrows: set[Arrow]) -> None:
    assert circle(arrows) is None


def test_imports_are_found_wherever_they_stand() -> None:
    sources = {
        "data.batch": "import numpy\nif TYPE_CHECKING:\n    from agentrl_core.model.pack import Pack",
        "model.pack": "def run():\n    from agentrl_core import Batch, operators\n    import agentrl_core.loss",
        "loss": "from agentrl_core import _core, Missing",
        "operators": "",
        "env.game": "import_module('agentrl_core.loss')",
        ROOT: "",
    }
    edges = arrows_of(sources, {"Batch": "data.batch"})
    assert edges == {
        ("env.game", "loss"),
        ("data.batch", "model.pack"),
        ("model.pack", "data.batch"),
        ("model.pack", "operators"),
        ("model.pack", "loss"),
        ("loss", "_core"),
        ("loss", ROOT),
    }
    assert upward(edges) == {("data.batch", "model.pack"), ("model.pack", "loss"), ("loss", ROOT), ("env.game", "loss")}
    assert set(circle(edges) or []) == {"data.batch", "model.pack"}
    assert circle(edges - {("data.batch", "model.pack")}) is None
