"""Pages, docstrings and messages stay under the budget for phrases that make a text hard to read.

`tests/support/english.py` has the phrases and the budget.
"""

from __future__ import annotations

import json

import pytest
from english import BUDGET, PHRASES, counts, docstrings, prose, sources
from pages import DOCS, ROOT

PAGES = [*sorted(DOCS.rglob("*.md")), *ROOT.glob("*.md")]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
ONE_PAGE = 3
"""How many times the budget a single page may have: one phrase on a short page is above the budget per 1 000 words."""

PACKAGE = ROOT / "python" / "agentrl_core"
FOLDERS = sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.glob("*/*.py")} - {"_core"})

LEAST = {"docstrings": 50_000, "docstrings of recipes": 50_000, "comments of Rust and CUDA": 40_000}
"""Words of some kinds, at least: a kind that is not found would be under every budget. Of the others 10 000."""

OF_WORDS = {("docs/vocabulary.md", "say, said")}
"""Pages about words: the vocabulary has the word that the field says for the same."""


def texts() -> dict[str, str]:
    """The pages, and the text of the notebooks, by path."""
    text_by_path = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PAGES}
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        parts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        text_by_path[str(path.relative_to(ROOT))] = "\n\n".join(parts)
    return text_by_path


@pytest.mark.parametrize("phrase", PHRASES)
def test_all_pages_together_are_under_the_budget(phrase: str) -> None:
    phrase_counts, words = counts(texts().values())
    assert words > 20_000
    assert phrase_counts[phrase] <= BUDGET[phrase]


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_page_is_far_above_the_budget(phrase: str) -> None:
    checked = {path: text for path, text in texts().items() if (path, phrase) not in OF_WORDS}
    assert len(checked) > 20
    for path, text in checked.items():
        cleaned = prose(text)
        found = PHRASES[phrase].findall(cleaned)
        allowed = max(1.0, ONE_PAGE * BUDGET[phrase] * len(cleaned.split()) / 1000)
        assert len(found) <= allowed, f"{path}: {phrase} {len(found)} times"


@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_are_under_the_budget(folder: str, phrase: str) -> None:
    texts = [prose(text) for text in docstrings(sorted((PACKAGE / folder).rglob("*.py")))]
    words = sum(len(text.split()) for text in texts)
    occurrences = sum(len(PHRASES[phrase].findall(text)) for text in texts)
    budget = max(2.0, ONE_PAGE * BUDGET[phrase] * words / 1000)
    assert occurrences <= budget, f"{folder}: {phrase} {occurrences} times"


@pytest.mark.parametrize("kind", sorted(sources().keys() - {"pages"}))
def test_all_texts_of_a_kind_are_under_the_budget(kind: str) -> None:
    phrase_counts, words = counts(sources()[kind])
    assert words > LEAST.get(kind, 10_000)
    above = {phrase: round(number, 2) for phrase, number in phrase_counts.items() if number > BUDGET[phrase]}
    assert not above


def test_the_phrases_are_counted() -> None:
    text = "What nobody said is behind it. Where `nobody` is told, say so.\n```sh\nsay\n```"
    phrase_counts, words = counts([text])
    assert words == 12
    per_word = 1000 / words
    assert phrase_counts == pytest.approx(
        {
            "What as a subject": per_word,
            "say, said": 2 * per_word,
            "where": per_word,
            "tell, told": per_word,
            "whoever, nobody": per_word,
            "behind": per_word,
        }
    )
