"""The programs of docs/environments.md run as written, and its tables name existing things."""

import re
import shutil

import pytest
from browser import program
from pages import ROOT, blocks, run, text_of

from agentrl_core import env


def test_an_environment_of_thirty_lines_keeps_the_protocol(capsys):
    first, *_ = blocks("environments")
    assert len([line for line in first.splitlines() if line.strip() and not line.startswith("print")]) <= 34
    run("environments", only=0)
    assert capsys.readouterr().out.startswith("CheckReport(tasks=3, steps=24, ended=3, hints=())")


def test_an_environment_of_several_agents_keeps_the_protocol(capsys):
    run("environments", only=1)
    assert capsys.readouterr().out.startswith("CheckReport(tasks=3, steps=6, ended=3, hints=())")


@pytest.mark.slow
@pytest.mark.skipif(
    program() is None or shutil.which("chromedriver") is None,
    reason="MiniWoB needs Chromium and chromedriver: make browser",
)
def test_the_browser_plays_a_task(capsys):
    pytest.importorskip("miniwob")
    run("environments", only=2)
    output = capsys.readouterr().out
    assert output.startswith("Click button ONE.\nActions: click(x, y)")
    assert output.endswith("1.0\n")


def test_the_environment_with_tools_runs(capsys):
    pytest.importorskip("bm25s")
    run("environments", only=3)
    assert capsys.readouterr().out == (
        "[{'role': 'tool', 'name': 'search', 'content': '[1] Polar bears live in the north.'}]\n1.0\n"
    )


def test_the_tables_name_existing_environments_and_extras():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| `(\w+)[^|]*\|[^|]+\| (?:`([\w-]+)`|\S)[^|]*\|", text_of("environments"), re.MULTILINE)
    assert {name for name, _ in rows} == {
        "Agents",
        "Calculator",
        "Gymnasium",
        "MCP",
        "MiniGrid",
        "MiniWoB",
        "Python",
        "ReasoningGym",
        "ScienceWorld",
        "Search",
        "TextWorld",
        "ToolEnvironment",
    }
    for name, extra in rows:
        assert hasattr(env, name)
        assert not extra or extra in extras
