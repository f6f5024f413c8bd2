"""Keys: the same ids from every kind of column, histories as lists, similar texts as in difflib."""

from difflib import SequenceMatcher

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentrl_core
from agentrl_core import keys
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators.keys import history, similar


def first_seen(ids: list[object]) -> list[int]:
    places: dict[object, int] = {}
    return [places.setdefault(key, len(places)) for key in ids]


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64])
def test_integers_of_any_width(dtype: type) -> None:
    limits = np.iinfo(dtype)
    ids = np.array([limits.max, limits.min, 3, limits.max, 3], dtype=dtype)
    assert keys.dense(ids).tolist() == [0, 1, 2, 0, 2]


@given(st.lists(st.text(max_size=3), max_size=30))
def test_texts_of_any_column(texts: list[str]) -> None:
    expected = first_seen(texts)
    chunks = pa.chunked_array([pa.array(texts[:5], pa.string()), pa.array(texts[5:], pa.string())])
    columns = [
        texts,
        pl.Series(texts, dtype=pl.String),
        chunks,
        pa.array(texts, pa.large_string()),
        pa.array(texts, pa.string_view()),
    ]
    for column in columns:
        assert keys.dense(column).tolist() == expected
    binary = [text.encode() for text in texts]
    assert keys.dense(pa.array(binary, pa.binary())).tolist() == expected


@given(
    st.lists(
        st.sampled_from(["", "\0", "a", "a\0", "task-0000123", "task-0000124", "task-00001230", "é" * 6, "é" * 7]),
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_dense_keys_of_texts_around_the_inline_length_of_a_view(texts: list[str], skipped: int) -> None:
    """A view holds 12 bytes itself: of columns with longer texts, without any, and cut from one that has some."""
    for column in (texts, [text for text in texts if len(text.encode()) <= 12]):
        expected = first_seen(list(column))
        for arrow_type in (pa.string_view(), pa.binary_view(), pa.large_string()):
            array = pa.array(["a text that is longer than any view"] * skipped + column, pa.large_string())
            sliced = array.cast(arrow_type).slice(skipped)
            assert keys.dense(sliced).tolist() == expected
        assert keys.dense(pl.Series(column, dtype=pl.String)).tolist() == expected


def test_many_short_texts_on_any_number_of_threads() -> None:
    numbers = np.random.default_rng(3).integers(0, 9000, size=70_001)
    expected = keys.dense(numbers)
    assert expected.max() > 8000
    threads = agentrl_core.num_threads()
    try:
        for count in (1, 4):
            agentrl_core.set_num_threads(count)
            for form in ("task-{:07d}", "a-longer-task-{:07d}"):
                assert (keys.dense(pl.Series([form.format(number) for number in numbers])) == expected).all()
    finally:
        agentrl_core.set_num_threads(threads)


def test_hashes_and_composites() -> None:
    hashes = np.zeros((4, 16), dtype=np.uint8)
    hashes[1, 0], hashes[2, 15], hashes[3, 0] = 1, 1, 1
    assert keys.dense(hashes).tolist() == [0, 1, 2, 1]
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, 3, size=50) for _ in range(3)]
    expected = first_seen(list(zip(*(column.tolist() for column in columns), strict=True)))
    assert keys.composite(*columns).tolist() == expected
    with pytest.raises(InvalidInputError, match=r"others\[0\] has 1 rows but first has 2"):
        keys.composite([1, 2], [1])


def test_history_needs_a_level() -> None:
    with pytest.raises(InvalidInputError, match="levels is 0; give 1 or more"):
        history(["a"], [0], [0], levels=0)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(alphabet="abc ", max_size=12), max_size=12), st.sampled_from([0.0, 0.5, 0.8, 1.0]))
def test_similar_texts_as_difflib(texts: list[str], threshold: float) -> None:
    firsts: list[str] = []
    expected = []
    for text in texts:
        near = (place for place, first in enumerate(firsts) if SequenceMatcher(None, text, first).ratio() >= threshold)
        place = next(near, len(firsts))
        if place == len(firsts):
            firsts.append(text)
        expected.append(place)
    assert similar(texts, threshold=threshold).tolist() == expected


def test_long_pages_by_sequence_and_by_sketch() -> None:
    """Over 200 characters difflib ignores popular letters; edits of one word keep pages together either way."""
    rng = np.random.default_rng(0)
    words = [f"{letter}{number}" for letter in "abcdefgh" for number in range(40)]
    pages = [" ".join(rng.choice(words, size=120)) for _ in range(3)]
    texts = []
    for row in range(12):
        edited = pages[row % 3].split()
        edited[row] = "changed"
        texts.append(" ".join(edited))
    for first in texts[:4]:
        are_similar = [similar([first, text], threshold=0.9).tolist() == [0, 0] for text in texts]
        assert are_similar == [SequenceMatcher(None, text, first).ratio() >= 0.9 for text in texts]
    assert similar(texts, threshold=0.8, kind="minhash").tolist() == [0, 1, 2] * 4
    groups = np.arange(12) // 6
    assert len(set(similar(texts, groups, threshold=0.8, kind="minhash").tolist())) == 6


def test_invalid_arguments_are_reported() -> None:
    with pytest.raises(InvalidInputError, match=r"texts\[1\] is None; give strings"):
        similar(["a", None])
    with pytest.raises(InvalidInputError, match="kind is 'cosine'"):
        similar(["a"], kind="cosine")
    with pytest.raises(InvalidInputError, match="threshold is 2; give a number from 0 to 1"):
        similar(["a"], threshold=2.0)
    with pytest.raises(InvalidInputError, match="a multiple of bands"):
        similar(["a"], kind="minhash", bands=7)
    with pytest.raises(InvalidInputError, match="2 nulls"):
        keys.dense(pl.Series(["a", None, None]))
