"""The vocabulary has each word once, with one meaning."""

from __future__ import annotations

import re
from collections import Counter

from pages import ROOT

TEXT = (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (?P<words>[^|]+?) \| (?P<meaning>[^|]+?) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str]]:
    """Return each word with its meaning; a row that names several words gives each of them."""
    found = [row for row in ROW.finditer(TEXT) if row["words"] not in ("word", "---")]
    return [(word.strip(), row["meaning"]) for row in found for word in row["words"].split(",")]


def test_each_row_is_a_word_and_a_meaning() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith("|")]
    headings = [line for line in lines if line in ("| word | meaning |", "|---|---|")]
    assert len(headings) % 2 == 0
    assert len(lines) - len(headings) == len([row for row in ROW.finditer(TEXT) if row["words"] != "word"]) > 80


def test_each_word_is_listed_once() -> None:
    def stem(word: str) -> str:
        return re.sub(r"\s*\(.*\)|^to ", "", word).lower()

    words = Counter(stem(word) for word, _ in rows())
    assert len(words) > 80
    assert not {word: count for word, count in words.items() if count > 1}


def test_no_two_words_have_one_meaning() -> None:
    meanings = Counter(row["meaning"] for row in ROW.finditer(TEXT) if row["words"] != "word")
    assert not {meaning for meaning, count in meanings.items() if count > 1}


def test_a_meaning_is_one_or_two_sentences() -> None:
    long = {word for word, meaning in rows() if len(re.findall(r"[.!?] [A-Z`]", meaning)) > 2 or len(meaning) > 260}
    assert not long
