"""A component of a phase that cites a paper is used by the recipe of that paper."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from pages import ROOT

from agentrl_core import Recipe, recipes

PACKAGE = ROOT / "python" / "agentrl_core"
PHASES = ("select", "rollout", "reward", "advantage", "weight", "loss", "replay", "schedule")
CITED = re.compile(r"arXiv:(\d{4}\.\d{4,5})")

UNUSED = {
    ("Curriculum", "2507.17515"): "URPO: its program opens the tasks by the referee's own average",
    ("FlagFilter", "2503.14476"): "DAPO: the recipe has the paper's length penalty, not its overlong filter",
    ("GroupFilter", "2502.01600"): "LOOP: the recipe drops single draws, with `SelectDraws`",
    ("ImportanceWeight", "2505.24298"): "AReaL: the recipe has no filter, as the paper; its page names the option",
    ("ImportanceWeight", "2601.22718"): "MinPRO: the recipe has the ratio inside the loss",
    ("LogStep", "2510.08457"): "ARES: the recipe has a coefficient for each kind of task, in its own component",
    ("ObservationWindow", "2509.11543"): "UI-S1: the context of a step is made by the recipe's program",
    ("Pairs", "2305.18290"): "DPO: the loss reads groups of two itself",
    ("Prefix", "2509.09284"): "Tree-OPO: the recipe's program starts branches at stored turns itself",
    ("Prefix", "2509.12618"): "ActiveVLN: the recipe's program replays the expert's first steps itself",
    ("ProportionalAllocator", "2601.19280"): "GDRO-RL: the recipe has the paper's bandit",
    ("RecentVisits", "2512.13106"): "TraPO: the recipe needs whole curves, not a window",
    ("TextLibrary", "2510.08191"): "Training-Free GRPO: its program applies the edits itself",
    ("TrackedBaseline", "2509.22601"): "SPEAR: the recipe takes the median in its replay component",
    ("TreeRelative", "2507.19849"): "ARPO: the recipe has the paper's default, the soft attribution",
    ("TreeRelative", "2509.09284"): "Tree-OPO: the recipe's baseline reads the teacher's values",
    ("Unscored", "2602.12268"): "CM2: the recipe's reward leaves failed judgements without a score itself",
}
"""Citations without such a use, each with its reason. A new one needs a reason; a stale one fails."""


def names_in(value: Any, visited: set[int]) -> Iterator[str]:
    """Yield the classes of a value and its fields, with their bases."""
    if id(value) in visited:
        return
    visited.add(id(value))
    yield from (kind.__name__ for kind in type(value).__mro__)
    inner: Any = ()
    if is_dataclass(value):
        inner = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inner = value
    for each in inner:
        yield from names_in(each, visited)


def citations() -> set[tuple[str, str]]:
    """Return the classes of the phases that cite a paper, with its number."""
    result = set()
    for phase in PHASES:
        for path in (PACKAGE / phase).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    result |= {(node.name, number) for number in CITED.findall(ast.get_docstring(node) or "")}
    return result


@pytest.mark.filterwarnings("ignore")  # other packages emit warnings when they are imported
def test_recipes_use_the_components_that_cite_their_papers() -> None:
    uses: dict[str, set[str]] = {}
    for name in recipes.names():
        module = importlib.import_module(f"agentrl_core.recipes.{name}")
        values = [value for value in vars(module).values() if isinstance(value, Recipe)]
        text = (PACKAGE / "recipes" / f"{name}.py").read_text(encoding="utf-8")
        used = {each for value in values for each in names_in(value, set())} | set(re.findall(r"\w+", text))
        for value in values:
            for number in CITED.findall(value.source):
                uses.setdefault(number, set()).update(used)
    cited = {(kind, number) for kind, number in citations() if number in uses}
    assert len(cited) > 150
    unused = {(kind, number) for kind, number in cited if kind not in uses[number]}
    assert unused - UNUSED.keys() == set(), "use the component in the recipe of the paper, or mend the citation"
    assert UNUSED.keys() - unused == set(), "a citation that no longer needs its reason"
