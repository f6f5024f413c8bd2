"""The pages of docs/."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def text_of(page: str) -> str:
    """A page as it is written."""
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def block(page: str, language: str, index: int = 0) -> str:
    """A block of code of a page, by its place among those of the language."""
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), re.DOTALL)[index]
