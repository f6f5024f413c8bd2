"""The catalogue matches the files: its table is current, every system has a page, and its total is right."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from agentrl_core import recipes

SOURCE = Path(__file__).parents[2] / "docs" / "catalogue.py"


@pytest.fixture(scope="module")
def catalogue() -> ModuleType:
    spec = importlib.util.spec_from_file_location("catalogue", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_current(catalogue: ModuleType) -> None:
    assert catalogue.TABLE.read_text(encoding="utf-8") == catalogue.table(catalogue.pages()), "run make catalogue"


def test_every_system_has_one_line_in_one_group(catalogue: ModuleType) -> None:
    head, *groups = catalogue.table(catalogue.pages()).split("\n## ")
    assert '<div id="filter"></div>' in head
    assert [group.split("\n")[0] for group in groups] == list(catalogue.GROUPS.values())
    rows = [line for group in groups for line in group.split("\n") if line.startswith("| [**")]
    assert sorted(line.split("**")[1] for line in rows) == recipes.names()
    for line in rows:
        name, purpose, *_ = (cell.strip() for cell in line.strip("|").split(" | "))
        source = name.partition("](")[2].removesuffix(")")
        assert (catalogue.TABLE.parent / source).is_file(), name
        assert len(purpose) > 10, name
        assert "arXiv" not in purpose, name
    replay = next(group for group in groups if group.startswith(catalogue.GROUPS["replay"]))
    assert "| [**arpo_gui**](../python/agentrl_core/recipes/arpo_gui.py) |" in replay
    assert "| select, reward, loss, replay | reward.format |" in replay


def test_every_system_has_a_page(catalogue: ModuleType, tmp_path: Path) -> None:
    assert catalogue.write_pages(tmp_path) == len(recipes.names())
    assert {path.stem for path in tmp_path.glob("*.md")} == {*recipes.names(), "index"}
    page = (tmp_path / "arpo_gui.md").read_text(encoding="utf-8")
    assert page.startswith("# arpo_gui\n\nARPO-GUI: ")
    for text in (
        "Source: arXiv:2505.16282",
        "- replay: `Inject(",
        "- facts: reward.format",
        "test_loops.py",
        "[replay]",
    ):
        assert text in page
    index = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "[arpo_gui](arpo_gui.md)" in index[index.index("## replay") :]


def test_a_page_has_the_evidence_on_its_recipe(catalogue: ModuleType) -> None:
    committed = catalogue.EVIDENCE.read_text(encoding="utf-8")
    lines = catalogue.evidence("gigpo", committed).splitlines()
    claims = [line for line in lines if line.startswith("- [Claim gigpo_")]
    assert len(claims) > 1
    assert all(line.startswith("- [Screening](../evidence.md#screening), chain: gain") for line in lines[len(claims) :])
    assert "(../evidence.md#claims), in quest: Step-level groups" in claims[-1]
    assert "## Claims\n" in committed
    assert "## Screening\n" in committed
    assert catalogue.evidence("no_such_recipe", committed) == ""
    page = (
        "| recipe | chain: gain of each seed | chain: verdict |\n| --- | --- | --- |\n"
        "| [gigpo](catalogue/gigpo.md) | +0.10, +0.20 | improves |\n\n| gigpo | of another table |\n"
    )
    assert catalogue.evidence("gigpo", page) == (
        "- [Screening](../evidence.md#screening), chain: gain of each seed +0.10, +0.20; chain: verdict improves\n"
    )
    text = catalogue.page_text(next(page for page in catalogue.pages() if page.recipe.name == "gigpo"), [])
    assert f"## Evidence\n\n{claims[0]}" in text


def test_the_count_counts(catalogue: ModuleType) -> None:
    _, *lines, summary, compared, _, _, _ = catalogue.count().splitlines()
    assert [line.split()[0] for line in lines] == recipes.names()
    assert summary.startswith(f"{len(lines)} systems: {sum(' runs ' in line for line in lines)} run")
    named = {path.stem for path in (SOURCE.parents[1] / "tests" / "recipes" / "cases").glob("*.toml")}
    assert f"({len(named)} files)" in summary
    assert compared.startswith(f"{len(lines)} recipes: ")
