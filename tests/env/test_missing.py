"""Environments and tools whose package is not installed report how to install it."""

import re
import subprocess
import sys

import pytest

CALLS = {
    "bm25s": ("env.Search(['a document'])", "search"),
    "gymnasium": ("env.Gymnasium('Taxi-v4')", "gymnasium"),
    "mcp": ("env.MCP(['a', 'server'])", "mcp"),
    "minigrid": ("env.MiniGrid('MiniGrid-Empty-5x5-v0')", "minigrid"),
    "miniwob": ("env.MiniWoB('click-test')", "miniwob"),
    "reasoning_gym": ("env.ReasoningGym()", "reasoning-gym"),
    "scienceworld": ("env.ScienceWorld()", "scienceworld"),
    "textworld": ("env.TextWorld()", "textworld"),
}


@pytest.mark.parametrize("package", CALLS)
def test_a_missing_package_is_reported_with_its_extra(package):
    call, extra = CALLS[package]
    program = f"""
import sys
sys.modules[{package!r}] = None  # as if it were not installed
from agentrl_core import env
from agentrl_core.exceptions import MissingDependencyError
try:
    {call}
except MissingDependencyError as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(rf"\w+ needs the package [\w-]+: pip install 'agentrl-core\[{extra}\]'\n", output)


def test_java_is_named_too():
    pytest.importorskip("scienceworld")
    program = """
import os
os.environ["PATH"] = ""
from agentrl_core import env
try:
    env.ScienceWorld(["boil"])
except ImportError as error:
    print(type(error).__name__, error)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.startswith("MissingDependencyError ScienceWorld needs Java, version 8 or newer")
