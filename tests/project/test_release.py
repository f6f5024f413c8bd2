"""The version has one source, and the pages on releases name existing things."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from public_names import public_names

import agentrl_core
from agentrl_core import renames


@pytest.fixture(scope="module")
def stated(root: Path) -> str:
    stated_version = tomllib.loads((root / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    assert isinstance(stated_version, str)
    return stated_version


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, dict[str, dict[str, list[str]]]]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def tool(root: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, root / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_package_and_metadata_have_the_version_of_cargo(stated: str) -> None:
    assert agentrl_core.__version__ == stated
    assert version("agentrl_core") == stated


def test_no_other_file_states_the_version(root: Path, stated: str, project: dict[str, dict[str, object]]) -> None:
    assert project["project"]["dynamic"] == ["version"]
    for path in (root / "crates").glob("*/Cargo.toml"):
        assert tomllib.loads(path.read_text(encoding="utf-8"))["package"]["version"] == {"workspace": True}
    for path in (*(root / "python").rglob("*.py"), root / "CITATION.cff", root / "mkdocs.yml"):
        assert f'"{stated}"' not in path.read_text(encoding="utf-8"), path.name


def test_the_changelog_begins_with_this_version(root: Path, stated: str) -> None:
    sections = re.findall(r"^## \[([^\]]+)\]", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] == stated


def test_the_changelog_counts_the_names_and_lists_the_removed_ones(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    table = renames.Renames.read().sections
    for count, words in (
        (len(table["modules"]), "modules and several hundred names"),
        (sum(map(len, public_names().values())), "public names"),
    ):
        assert re.findall(rf"(\d+) {words}", text) == [str(count)], words
    removed = {old for section in table.values() for old, new in section.items() if new.startswith("removed")}
    assert len(removed) > 10
    last_words = {old.rpartition(".")[2] for old in removed}
    listed = text.partition("\n### Removed\n")[2].partition("\n## ")[0]
    assert last_words <= set(re.findall(r"\w+", listed))


def test_pages_name_files_targets_and_options_that_are_there(root: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    checked = 0
    for page in ("release", "stability", "install"):
        text = (root / "docs" / f"{page}.md").read_text(encoding="utf-8")
        for target in re.findall(r"`make ([a-z-]+)`", text):
            assert target in targets | {"test", "check"}, f"{page}: make {target}"
            checked += 1
        for path, rest in re.findall(r"python (tools/\w+\.py)([^`\n]*)", text):
            source = (root / path).read_text(encoding="utf-8")
            for option in re.findall(r"--[a-z-]+", rest):
                assert f'"{option}"' in source, f"{page}: {path} {option}"
            checked += 1
    assert checked > 10


def test_every_extra_is_described_and_tried(root: Path, project: dict[str, dict[str, dict[str, object]]]) -> None:
    extras = set(project["project"]["optional-dependencies"])
    table = re.findall(r"^\| (`[^|]*) \|", (root / "docs/install.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for row in table for name in re.findall(r"`([a-z-]+)`", row)} == extras
    assert set(tool(root, "extras").EXTRAS) == extras


def test_every_row_of_the_versions_has_tests_and_a_floor(root: Path) -> None:
    module = tool(root, "versions")
    assert len(module.ROWS) >= 9
    for name, row in module.ROWS.items():
        assert row.tests
        for test in row.tests:
            path, _, function = test.partition("::")
            assert (
                f"def {function}" in (root / path).read_text(encoding="utf-8") if function else (root / path).exists()
            ), name
        assert re.fullmatch(r"[\d.]+", module.floor(name))


def test_the_rows_of_old_and_new_names_end_in_names_that_are_there() -> None:
    """A page promises that old recipes open: the new names in the table exist."""
    table = renames.Renames.read()
    count = 0
    for new in table.sections["names"].values():
        module, _, name = new.rpartition(".")
        if not new.startswith("agentrl_core.") or not name[0].isupper():
            continue
        spec = importlib.util.find_spec(module) if module.count(".") == 1 else None
        if spec is not None:
            assert hasattr(importlib.import_module(module), name), new
            count += 1
    assert count > 20
