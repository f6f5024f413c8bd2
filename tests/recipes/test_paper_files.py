"""Paper files parse, are complete, and their arithmetic is right."""

import re
from pathlib import Path

import numpy as np
import pytest
from paper_files import FOLDER, Paper

FILES = sorted(FOLDER.glob("*.toml"))
MINIMAL = FOLDER / "grpo.toml"


def test_there_are_files():
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_is_complete_and_right(path: Path):
    paper = Paper.read(path)
    assert paper.examples
    assert all(
        np.isfinite(value).any() or "unscored rollout" in example.covers
        for example in paper.examples
        for value in example.expect.values()
    )


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"(?m)^system = .*$", "", "'system'.* is missing"),
        (r'what = "\w+"', 'what = "rumour"', "'rumour'.* is not one of"),
        (r'quote = "', 'quote = "' + "long " * 60, "quote one sentence"),
        (r"(?m)^group_size = .*$", "", "'group_size'.* is missing"),
        (r"second_hand = false", "second_hand = 0", "'second_hand'.* has the wrong type"),
        (r"second_hand = false", "second_hand = false\nthird_hand = true", "'third_hand'.* is not of the format"),
        (r"mean\(R\) = [\d.]+", "mean(R) = 0.123", "the expression is"),
        (r"work = \[", 'work = ["R equals 1", ', "is not `name = expression = value`"),
        (r'covers = \["uneven group"', 'covers = ["odd group"', "'odd group'.* is not one of"),
        (r"(?ms)^\[silent\].*?\n(?=\[|\Z)", "[silent]\n", "neither an example nor a reason"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, pattern: str, replacement: str, message: str):
    text, count = re.subn(pattern, lambda _: replacement, MINIMAL.read_text(encoding="utf-8"), count=1)
    assert count
    path = tmp_path / "wrong.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Paper.read(path)
