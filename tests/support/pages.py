"""The pages of docs/, and their code blocks."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text_of(page: str) -> str:
    """Return the text of a page."""
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the code blocks of a page in a language."""
    code_blocks = re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
    assert code_blocks, f"{page} has no block in {language}"
    return code_blocks


def block(page: str, language: str, index: int = 0) -> str:
    """Return a code block of a page, by its place among those of the language."""
    return blocks(page, language)[index]


def run(
    page: str, names: dict[str, Any] | None = None, cuts: dict[str, str] | None = None, *, only: int | None = None
) -> dict[str, Any]:
    """Run the Python of a page with given names and reduced numbers; return the names it defined.

    Each text to cut must occur once in the page. `only` is the place of a block that runs by itself.
    """
    code_blocks = blocks(page)
    code = "\n".join(code_blocks if only is None else [code_blocks[only]])
    for long, short in (cuts or {}).items():
        assert code.count(long) == 1, f"{long!r} is not once in the code of {page}"
        code = code.replace(long, short)
    namespace: dict[str, Any] = {"__name__": "__main__", **(names or {})}
    exec(compile(code, f"docs/{page}.md", "exec", dont_inherit=True), namespace)
    return namespace
