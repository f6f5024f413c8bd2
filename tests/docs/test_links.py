"""Every link of the pages leads to an existing file or heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import DOCS, ROOT

LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
MADE = ("catalogue/", "api/", "figures.md", "notebooks/")
"""Pages that are generated with the site; its strict build checks the links to them."""

PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])


def headings(path: Path) -> set[str]:
    """Return the anchors of a page."""
    found = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in found}


def links(path: Path) -> list[str]:
    """Return the targets of a page's links, without code."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return LINK.findall(text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for link in links(path):
        target, _, anchor = link.partition("#")
        if link.startswith(("http://", "https://")):
            continue
        target_path = path if not target else (path.parent / target).resolve()
        if not target_path.exists() and target_path.is_relative_to(DOCS):
            place = str(target_path.relative_to(DOCS))
            assert place.startswith(MADE), f"{link} leads nowhere"
            continue
        assert target_path.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in headings(target_path), f"{link}: no such heading"


def test_links_were_found() -> None:
    assert sum(len(links(path)) for path in PAGES) > 40
