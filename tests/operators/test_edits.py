"""Edit distances against the textbook table."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators.edit_distance import edit_distances

WORDS = st.lists(st.sampled_from(["a", "b", "cd", "é"]), max_size=9)


def table(first: list[str], second: list[str]) -> int:
    """d[i][j] = min(d[i-1][j] + 1, d[i][j-1] + 1, d[i-1][j-1] + [first[i] is not second[j]])."""
    rows = [list(range(len(second) + 1))]
    for i, one in enumerate(first, 1):
        row = [i]
        for j, other in enumerate(second, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (one != other)))
        rows.append(row)
    return rows[-1][-1]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), max_size=150))
def test_distances_are_those_of_the_table(pairs: list[tuple[list[str], list[str]]]) -> None:
    first, second = [one for one, _ in pairs], [other for _, other in pairs]
    distances = edit_distances(first, second).tolist()
    assert distances == [table(one, other) for one, other in pairs]
    assert distances == edit_distances(second, first).tolist()
    numbers = {word: place for place, word in enumerate(("a", "b", "cd", "é"))}
    coded = [[[numbers[word] for word in words] for words in side] for side in (first, second)]
    assert distances == edit_distances(*coded).tolist()


def test_by_hand() -> None:
    """kitten, sitten, sittin, sitting: 3. flaw, law, lawn: 2. Two of three reference words are wrong: WER 2 / 3."""
    assert edit_distances(["kitten", "flaw", "", "same"], ["sitting", "lawn", "abc", "same"]).tolist() == [
        3,
        2,
        3,
        0,
    ]
    assert edit_distances([["a", "b", "x"]], [["a", "c"]]).tolist() == [2]
    assert edit_distances([], []).tolist() == []
    with pytest.raises(InvalidInputError, match="first has 1 sequences and second has 2"):
        edit_distances(["a"], ["b", "c"])
    with pytest.raises(InvalidInputError, match=r"hold both .* give only words"):
        edit_distances([["a"]], [[1]])
