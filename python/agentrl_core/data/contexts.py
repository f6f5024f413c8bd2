"""Contexts: what the model had read before each action."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Contexts(NamedTuple):
    """Contexts of actions: a draw has one, and another one each time it was rewritten.

    Attributes:
        tokens: `int32[tokens]` of all contexts, each from its beginning to its last action, or to the trajectory's end.
        offsets: `int64[contexts + 1]`, where each begins in `tokens`.
        draws: `int64[contexts]`, the draw of each.
        steps: `int64[contexts + 1]`: context k is that of the rows `steps[k]:steps[k + 1]` at level `step`.
        begins: `int64[steps]`, how many tokens of its context come before each step's action; -1: it has no tokens.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    draws: NDArray[np.int64]
    steps: NDArray[np.int64]
    begins: NDArray[np.int64]
