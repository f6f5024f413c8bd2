"""The page of agents names the existing entry points, and its loop is Python whose names exist."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from agentrl_core import engine, env, recipes
from agentrl_core.agents import Endpoint, VllmUpstream


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "agents.md").read_text(encoding="utf-8")


def test_the_doors_are_those_of_the_endpoint(page: str) -> None:
    routes = {route.path for route in Endpoint(VllmUpstream("http://127.0.0.1:1")).app.routes}
    documented = set(re.findall(r"^\| `(/v1/[a-z_/]+)`", page, flags=re.MULTILINE))
    assert documented == {path for path in routes if path.startswith("/v1/")} - {"/v1/models"}
    for path in re.findall(r"localhost:8800(/[a-z0-9/]+)", page):
        assert path.replace("/a1", "/{session}") in routes, path


def test_the_loop_is_python_and_its_names_are_there(page: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    tree = ast.parse(code)
    [run] = [node for node in tree.body if isinstance(node, ast.AsyncFunctionDef)]
    assert [argument.arg for argument in run.args.args] == ["task", "base_url", "api_key"]
    names = {node.value.id: node.attr for node in ast.walk(tree) if is_of_package(node)}
    assert names == {"env": "Agents", "engine": "Transformers", "recipes": "GRPO"}
    [world] = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "env.Agents"]
    assert {keyword.arg for keyword in world.keywords} <= set(inspect.signature(env.Agents).parameters)


def is_of_package(node: ast.AST) -> bool:
    packages = {"env": env, "engine": engine, "recipes": recipes}
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in packages
        and hasattr(packages[node.value.id], node.attr)
    )
