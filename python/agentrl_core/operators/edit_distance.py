"""Edit distances between sampled and expected sequences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.operators import keys

Elements = Sequence[str | int]
"""Units of an edit: characters of a text, words or tokens."""


def edit_distances(first: Sequence[Elements], second: Sequence[Elements]) -> NDArray[np.int64]:
    """Levenshtein distance of each pair of sequences: the fewest insertions, deletions and replacements.

    Texts are edited by characters, lists by elements. A word error rate is the distance of the two texts' words
    divided by the words of the reference.

    Args:
        first: n texts, or n lists of words or of token ids.
        second: the same number, of the same kind.

    Returns:
        `int64[n]`.

    Raises:
        InvalidInputError: lengths differ, or words are mixed with token ids.

    Example:
        >>> from agentrl_core.operators.edit_distance import edit_distances
        >>> edit_distances(["kitten", ""], ["sitting", "ab"]).tolist()
        [3, 2]
        >>> edit_distances(["the cat sat".split()], ["the cat".split()]).tolist()
        [1]
    """
    if len(first) != len(second):
        raise InvalidInputError(f"first has {len(first)} sequences and second has {len(second)}; give the same number")
    elements = list(chain(chain.from_iterable(first), chain.from_iterable(second)))
    if len({isinstance(element, str) for element in elements}) > 1:
        text, other = (next(each for each in elements if isinstance(each, str) is kind) for kind in (True, False))
        raise InvalidInputError(
            f"first and second hold both {text!r:.40} and {other!r:.40}; give only words, or only token ids, in both"
        )
    ids = keys.dense(elements) if elements else np.zeros(0, np.uint32)
    offsets = [np.cumsum([0, *map(len, side)]).astype(np.int64) for side in (first, second)]
    border = int(offsets[0][-1])
    return _core.reward.edit_distances(ids[:border], offsets[0], ids[border:], offsets[1])
