"""THIRD_PARTY_LICENSES names every crate linked into the wheel, with the versions of Cargo.lock."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

LINE = re.compile(r"^  (?P<name>[\w-]+) (?P<version>\d\S*): (?P<licence>\S.*)$", re.MULTILINE)
ONLY_ELSEWHERE = {"core-foundation-sys", "errno"}
"""Crates that are not in the wheel of this machine but in that of another system."""


@pytest.fixture(scope="module")
def tool(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("third_party", root / "tools/third_party.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def parts(root: Path) -> list[str]:
    return (root / "THIRD_PARTY_LICENSES").read_text(encoding="utf-8").split(f"\n{'=' * 78}\n")


@pytest.fixture(scope="module")
def named(parts: list[str]) -> dict[tuple[str, str], str]:
    return {(each["name"], each["version"]): each["licence"] for each in LINE.finditer(parts[0])}


def test_the_versions_are_those_of_the_lock_file(root: Path, named: dict[tuple[str, str], str]) -> None:
    locked = tomllib.loads((root / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    assert len(named) > 50
    assert set(named) <= {(each["name"], each["version"]) for each in locked}


def test_every_crate_that_the_binding_names_is_there(root: Path, named: dict[tuple[str, str], str]) -> None:
    crates: set[str] = set()
    for path in (root / "crates").glob("*/Cargo.toml"):
        crates |= set(tomllib.loads(path.read_text(encoding="utf-8"))["dependencies"])
    others = {name for name in crates if not name.startswith("agentrl-")}
    assert len(others) > 10
    assert others <= {name for name, _ in named}


@pytest.mark.skipif(shutil.which("cargo") is None or sys.platform != "linux", reason="asks cargo what is linked")
def test_cargo_links_these_crates(tool: ModuleType, named: dict[tuple[str, str], str]) -> None:
    linked = {(each.name, each.version): each.licence for each in tool.linked("x86_64-unknown-linux-gnu")}
    assert {key: named.get(key) for key in linked} == linked, "run python tools/third_party.py"
    assert {name for name, _ in named.keys() - linked.keys()} <= ONLY_ELSEWHERE


def test_every_licence_has_its_text(tool: ModuleType, parts: list[str], named: dict[tuple[str, str], str]) -> None:
    """Apache-2.0 has one text for all; the other licences belong to the crates named above them."""
    owners: dict[str, str] = {}
    for part in parts[1:-1]:
        names, _, text = part.strip().partition("\n\n")
        for name in names.split(", "):
            owners[name] = owners.get(name, "") + text
    words = {"MIT": "Permission is hereby granted", "BSD-2-Clause": "Redistribution", "BSL-1.0": "Boost Software"}
    checked = 0
    for (name, version), licence in named.items():
        for term in tool.preferred(licence).split(" AND "):
            if term != "Apache-2.0":
                assert words[term] in owners[f"{name} {version}"], f"{name}: {term}"
                checked += 1
    assert checked > 8
    assert "Apache License" in parts[-1]
    assert "Copyright" in owners[next(name for name in owners if name.startswith("arrow-ipc"))], "the notice of Arrow"


def test_the_licences_are_among_those_allowed(root: Path, tool: ModuleType, named: dict[tuple[str, str], str]) -> None:
    allowed = set(tomllib.loads((root / "deny.toml").read_text(encoding="utf-8"))["licenses"]["allow"])
    for licence in named.values():
        assert set(tool.preferred(licence).split(" AND ")) <= allowed


@pytest.mark.parametrize(
    ("expression", "preferred"),
    [
        ("MIT OR Apache-2.0", "Apache-2.0"),
        ("MIT/Apache-2.0", "Apache-2.0"),
        ("Unlicense OR MIT", "MIT"),
        ("Apache-2.0 AND MIT", "Apache-2.0 AND MIT"),
        ("BSL-1.0", "BSL-1.0"),
    ],
)
def test_the_preferred_licence(tool: ModuleType, expression: str, preferred: str) -> None:
    assert tool.preferred(expression) == preferred


def test_nothing_else_in_the_package_is_of_others(root: Path) -> None:
    """A copied script would have a notice of its own, or be minified."""
    assets = [*(root / "python/agentrl_core").rglob("*.js"), *(root / "python/agentrl_core").rglob("*.css")]
    assets += (root / "cuda").glob("*.cu")
    assert len(assets) > 10
    for path in assets:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"copyright|@licen[cs]e|\(c\)|sourceMappingURL", text, re.IGNORECASE), path.name
        assert max(map(len, text.splitlines())) < 400, f"{path.name} is minified"
