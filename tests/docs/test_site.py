"""The site has every page, AGENTS.md names existing things, and generated pages match their sources."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pages import DOCS, ROOT

yaml = pytest.importorskip("yaml")


def leaves(nav: Any) -> list[str]:
    """Return the pages of the navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in leaves(part)]


@pytest.fixture(scope="module")
def site() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_every_page_is_in_the_navigation(site: dict[str, Any]) -> None:
    listed = leaves(site["nav"])
    committed = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert len(committed) > 15
    assert committed <= set(listed)
    assert len(listed) == len(set(listed))
    generated = set(listed) - committed
    notebooks = {f"notebooks/{path.stem}.md" for path in (DOCS / "notebooks").glob("*.ipynb")}
    assert generated == {"catalogue/index.md", "api/index.md", "figures.md", *notebooks}


def test_reading_the_site_needs_no_network(site: dict[str, Any]) -> None:
    assert site["theme"]["font"] is False
    assert site["strict"] is True
    assert all((DOCS / script).is_file() for script in site["extra"]["polyfills"])


@pytest.mark.slow
@pytest.mark.full
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    pytest.importorskip("material")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    from agentrl_core import recipes

    pages = {path.stem for path in (tmp_path / "catalogue").glob("*.html")}
    assert pages == {*recipes.names(), "index"}
    figures = html.unescape(re.sub(r"<[^>]+>", "", (tmp_path / "figures.html").read_text(encoding="utf-8")))
    records = list((ROOT / "bench" / "record").glob("*/*.json"))
    assert len(records) > 20
    for record in records:
        assert json.loads(record.read_text(encoding="utf-8"))["command"] in figures
    api = (tmp_path / "api" / "agentrl_core.loss.html").read_text(encoding="utf-8")
    assert 'id="agentrl_core.loss.policy.Policy"' in api
    loaded = re.compile(r"""<(?:script|img|iframe)[^>]+src=["']?https?:|<link[^>]+rel=["']?stylesheet[^>]+https?:""")
    for page in tmp_path.rglob("*.html"):
        assert not loaded.findall(page.read_text(encoding="utf-8")), page.name


def test_agents_md_is_short_and_names_existing_paths_and_make_targets() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    named = [name for name in re.findall(r"`([\w./-]+/[\w./-]*|\w+\.md)`", text) if "agentrl_core._core" not in name]
    assert len(named) > 15
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "python" / "agentrl_core" / name).exists(), name
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = set(re.findall(r"`make ([a-z-]+)`", text))
    assert len(used) >= 6
    assert used <= targets | {"test", "check"}
