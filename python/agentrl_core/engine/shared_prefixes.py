"""Find the beginnings that prompts of a batch share, so that each is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# A shared beginning is a forward pass of its own: on a CPU it takes as long as some ten tokens.
LEAST_SAVED = 64


class SharedPrefix(NamedTuple):
    """The first `length` tokens of the prompt number `prompt`, which is the first one that has them."""

    prompt: int
    length: int


def shared_prefixes(prompts: Sequence[NDArray[np.int32]], least_saved: int = LEAST_SAVED) -> list[list[SharedPrefix]]:
    """Return the beginnings that are worth a pass of their own, in the order of computation.

    Those of a list can be computed together, each from a beginning in an earlier list. A beginning of `length` tokens
    that n prompts share, and of which `before` are in the one that it continues, saves (n - 1)(length - before) tokens.

    Args:
        prompts: int32 [tokens] each, without negative tokens.
        least_saved: fewest tokens that a beginning saves.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.engine.shared_prefixes import shared_prefixes
        >>> prompts = [np.array(tokens, np.int32) for tokens in ([7, 8, 1, 1], [7, 8, 1, 2], [7, 8, 3])]
        >>> shared_prefixes(prompts, least_saved=1)
        [[SharedPrefix(prompt=0, length=2)], [SharedPrefix(prompt=0, length=3)]]
    """
    order = sorted(range(len(prompts)), key=lambda index: prompts[index].astype(">i4").tobytes())
    common = np.array([_common(prompts[one], prompts[other]) for one, other in pairwise(order)], np.int64)
    levels: list[list[SharedPrefix]] = []
    ranges = [(0, len(order), 0, 0)]  # of the order, with the tokens and the level of the beginning before
    while ranges:
        begin, end, before, level = ranges.pop()
        if end - begin < 2:
            continue
        inside = common[begin : end - 1]
        length = int(inside.min())
        if (end - begin - 1) * (length - before) >= least_saved:
            if level == len(levels):
                levels.append([])
            levels[level].append(SharedPrefix(min(order[begin:end]), length))
            before, level = length, level + 1
        edges = [begin, *(begin + 1 + np.flatnonzero(inside == length)).tolist(), end]
        ranges += [(*part, before, level) for part in pairwise(edges)]
    return levels


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Return how many first tokens are equal."""
    count = min(len(one), len(other))
    differs = one[:count] != other[:count]
    return int(differs.argmax()) if differs.any() else count
