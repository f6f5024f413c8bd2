"""Names in inline code of pages and docstrings exist: modules have them, and classes and functions take the options."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from english import docstrings
from pages import DOCS, ROOT

PACKAGE = ROOT / "python" / "agentrl_core"
MODULES = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py") if not path.parent.name.startswith("_"))
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md"))])
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
CALL = re.compile(r"(?<![\w.])([A-Z]\w+)\(")
ATTRIBUTE = re.compile(r"(?<![\w./-])([A-Z]\w*[a-z]\w*)\.([A-Za-z_]\w*)")
DOTTED = re.compile(
    rf"(?<![\w./-])(?:agentrl_core\.|arl\.)?((?:{'|'.join(MODULES)})(?:\.[A-Za-z]\w*)+)(?![\w/*]|\.(?:\w|\*))"
)

OTHERS = {
    "AsyncGRPOTrainer": "TRL",
    "GRPOConfig": "TRL",
    "MixedPrecisionPolicy": "torch.distributed.fsdp",
    "ShortBonus": "the component that docs/howto/component.md defines",
}
"""Names that look like calls of a class and belong to another package or concept."""

VARIABLES = ("collect", "component", "engine", "loss", "update")
"""Modules whose name is also that of a variable: `update.pack` is a method of an update."""

ELSEWHERE = {
    "model": ("compile", "eval", "generation_config", "name_or_path", "value_head"),
    "reward": ("accuracy", "judge"),
    "weight": ("to",),
}
"""Modules whose name is also that of a model of Hugging Face, of a column of rewards, or of a tensor; their names."""

OTHER_ATTRIBUTES = {
    "AutoProcessor.from_pretrained": "transformers",
    "Cargo.lock": "file",
    "Cargo.toml": "file",
    "DataFrame.agentrl": "Polars",
    "Engine.precision": "optional",
    "Env.run": "verifiers",
    "Environment.restore": "optional",
    "Episode.snapshot": "optional",
    "Episode.tools": "optional",
    "Expr.agentrl": "Polars",
    "LazyFrame.agentrl": "Polars",
    "ModernBertDecoderForCausalLM.get_decoder": "transformers",
    "RecordBatchFileReader.metadata": "pyarrow",
    "Sample.Status": "slime",
    "Taskset.load": "verifiers",
    "Trace.to_record": "verifiers",
}
"""Attributes of classes of other packages, and optional ones of interfaces that users implement."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield the pages and docstrings, each with its location."""
    for path in PAGES:
        yield str(path.relative_to(ROOT)), re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for path in sorted(PACKAGE.rglob("*.py")):
        for text in docstrings([path]):
            yield str(path.relative_to(ROOT)), text


def spans() -> Iterator[tuple[str, str]]:
    """Yield the inline code of pages and docstrings."""
    for place, text in texts():
        for code in CODE.findall(text):
            yield place, " ".join(code.split())


def resolved(dotted: str) -> bool:
    """Return whether a name of the package can be imported."""
    head, *rest = dotted.split(".")
    value: Any = importlib.import_module(f"agentrl_core.{head}")
    path = f"agentrl_core.{head}"
    for name in rest:
        path = f"{path}.{name}"
        if not hasattr(value, name):
            try:
                value = importlib.import_module(path)
            except ModuleNotFoundError:
                return isinstance(value, type) and name in getattr(value, "__annotations__", {})
        else:
            value = getattr(value, name)
    return True


def attributes() -> set[str]:
    """Return the names of all methods and fields of the package."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names |= {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
                names |= {ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign)}
    return names


def is_attribute(dotted: str, known: set[str]) -> bool:
    """Return whether a name is an attribute of a variable that has the name of a module, or a column of the package."""
    head, name, *_ = dotted.split(".")
    return name in ELSEWHERE.get(head, ()) or dotted in columns() or (head in VARIABLES and name in known)


@cache
def columns() -> set[str]:
    """Return the names with a dot that the package's code uses as texts, such as the column `reward.format`."""
    strings = (
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {text for text in strings if re.fullmatch(r"\w+(\.\w+)+", text)}


def names_in(node: ast.ClassDef) -> set[str]:
    """Return the names that a class defines in its body or assigns as `self.name`."""
    names: set[str] = set()
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(part.name)
        elif isinstance(part, ast.AnnAssign):
            names.add(ast.unparse(part.target))
        elif isinstance(part, ast.Assign):
            names |= {ast.unparse(target) for target in part.targets}
    return names | {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and ast.unparse(part.value) == "self"
    }


def attributes_of_classes() -> dict[str, set[str]]:
    """Return the attributes of each class: its own, and those of its bases."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py*"):
        if path.suffix not in (".py", ".pyi"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                own.setdefault(node.name, set()).update(names_in(node))
                bases.setdefault(node.name, set()).update(
                    ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases
                )

    def of(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        if name in seen or name not in own:
            return set()
        return own[name].union(*(of(base, seen | {name}) for base in bases[name]))

    return {name: of(name) for name in own}


def parameters() -> dict[str, set[str]]:
    """Return the names of all classes of the package, each with its named arguments, including its bases' options."""
    fields: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py*"):
        if path.suffix not in (".py", ".pyi"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = fields.setdefault(node.name, set())
                bases.setdefault(node.name, []).extend(
                    ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases
                )
                for part in node.body:
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                        names.add(part.target.id)
                    elif isinstance(part, ast.FunctionDef) and part.name in ("__init__", "__new__"):
                        names |= {each.arg for each in (*part.args.args, *part.args.kwonlyargs)}
                        names |= {"**"} if part.args.kwarg else set()

    def of(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        if name in seen or name not in fields:
            return set()
        return fields[name].union(*(of(base, seen | {name}) for base in bases[name]))

    return {name: of(name) for name in fields}


@pytest.fixture(scope="module")
def classes() -> dict[str, set[str]]:
    return parameters()


@pytest.mark.filterwarnings("ignore")  # other packages emit warnings when they are imported
def test_dotted_names_are_there() -> None:
    found = {(place, name) for place, code in spans() for name in DOTTED.findall(code)}
    assert len(found) > 200
    known = attributes()
    wrong = [
        f"{place}: {name}" for place, name in sorted(found) if not resolved(name) and not is_attribute(name, known)
    ]
    assert not wrong, "\n".join(wrong)


def test_calls_name_classes_that_are_there(classes: dict[str, set[str]]) -> None:
    known = {*classes, *dir(builtins), *OTHERS}
    found = {(place, name) for place, code in spans() for name in CALL.findall(code)}
    assert len(found) > 100
    wrong = [f"{place}: {name}(...)" for place, name in sorted(found) if name not in known]
    assert not wrong, "\n".join(wrong)


def test_attributes_of_classes_are_there() -> None:
    classes = attributes_of_classes()
    found = {(place, *name) for place, code in spans() for name in ATTRIBUTE.findall(code)}
    assert len(found) > 200
    wrong = [
        f"{place}: {name}.{attribute}"
        for place, name, attribute in sorted(found)
        if attribute not in classes.get(name, ()) and f"{name}.{attribute}" not in OTHER_ATTRIBUTES
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["weight.nothing", "reward.nothing", "loss.Polisy", "model.answers"])
def test_a_false_name_is_found(name: str) -> None:
    assert not resolved(name)
    assert not is_attribute(name, attributes())


@pytest.mark.parametrize(
    ("name", "attribute"),
    [("Component", "max_rounds"), ("Clip", "max_rounds"), ("GroupTree", "branches")],
    ids=["of a derived class", "of a sibling", "a local variable"],
)
def test_an_attribute_that_a_class_lacks_is_found(name: str, attribute: str) -> None:
    classes = attributes_of_classes()
    assert "max_rounds" in classes["DynamicSampling"]
    assert attribute not in classes[name]


def test_calls_name_options_that_are_there(classes: dict[str, set[str]]) -> None:
    checked, wrong = 0, []
    for place, code in spans():
        try:
            tree = ast.parse(
                code.replace("…", "...").replace("=...", "=0").replace("=)", "=0)").replace("=,", "=0,"), mode="eval"
            )
        except SyntaxError:
            continue
        for call in ast.walk(tree):
            if isinstance(call, ast.Call):
                name = ast.unparse(call.func).split(".")[-1]
                takes = classes.get(name, {"**"})
                options = [each.arg for each in call.keywords if each.arg]
                checked += len(options)
                wrong += [f"{place}: {name}({each}=)" for each in options if "**" not in takes and each not in takes]
    assert checked > 200
    assert not wrong, "\n".join(sorted(set(wrong)))
