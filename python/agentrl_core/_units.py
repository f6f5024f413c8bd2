"""Units: which draws a loss needs whole in one update and in one pack, and how units are put into packs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core._core import PlannedPack
    from agentrl_core.batch import Batch

_NO_LIMIT = 2**31 - 1  # tokens; a planned pack counts them in 32 bits


def pairs_of(batch: Batch, valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The pair of every draw, -1 where it has none: `int64[draws]`.

    A pair is the two draws with the same number in the column `pair`, where negative numbers stand for no pair; without
    that column the groups are the pairs. A pair whose other draw is not valid is none.

    Raises:
        InvalidInputError: more than two draws have the same number, or the column holds no whole numbers.
    """
    own = batch.has("pair", "draw")
    ids = np.asarray(batch.column("pair", "draw") if own else batch.keys("group_id", "draw"))
    remedy = "give the draws whole numbers, one for each two: batch.with_columns('draw', pair=...), negative for none"
    if not np.issubdtype(ids.dtype, np.integer):
        raise InvalidInputError(f"column 'pair' holds {ids.dtype}, which numbers no pairs; {remedy}")
    ids = ids.astype(np.int64)
    known, place, count = np.unique(ids, return_inverse=True, return_counts=True)
    large = np.flatnonzero((count > 2) & (known >= 0))
    if len(large):
        name = "pair" if own else "group"
        raise InvalidInputError(
            f"the loss needs pairs, but {name} {known[large[0]]} has {count[large[0]]} draws; {remedy}"
        )
    both = np.bincount(place, weights=valid, minlength=len(known)) == 2
    return np.where(both[place] & valid & (ids >= 0), place, -1)


def plan_units(
    batch: Batch, draws: NDArray[np.int64], unit_of: NDArray[np.int64], *, max_tokens: int, name: str
) -> list[PlannedPack]:
    """Packs in which every unit is whole: the longest unit first, each into the first pack with room for it.

    Args:
        batch: the batch.
        draws: `int64[k]`, ascending.
        unit_of: `int64[draws of the batch]`, the unit of each draw.
        max_tokens: tokens of a pack.
        name: what error messages call a unit.

    Raises:
        InvalidInputError: a unit has more than `max_tokens` tokens.
    """
    lengths = np.zeros(batch.num_draws, dtype=np.int64)
    for plan in batch.plan(draws, max_tokens=_NO_LIMIT):
        np.add.at(lengths, plan.draw, np.diff(plan.cu_seqlens))
    known, place = np.unique(unit_of[draws], return_inverse=True)
    sizes = np.bincount(place, weights=lengths[draws], minlength=len(known)).astype(np.int64)
    if len(sizes) and sizes.max() > max_tokens:
        largest = int(sizes.argmax())
        raise InvalidInputError(
            f"max_tokens is {max_tokens}, but the loss needs a {name} whole in one pack, and the {name} of draw "
            f"{draws[place == largest][0]} has {sizes[largest]} tokens; raise max_tokens"
        )
    rooms = np.full(len(sizes), max_tokens, dtype=np.int64)  # as many packs as units is always enough
    pack_of = np.full(len(sizes), -1, dtype=np.int64)
    for unit in np.argsort(-sizes, kind="stable"):
        if sizes[unit]:  # a unit without a trained token is in no pack
            pack_of[unit] = np.argmax(rooms >= sizes[unit])
            rooms[pack_of[unit]] -= sizes[unit]
    packs = range(int(pack_of.max(initial=-1)) + 1)
    # All of these fit into one pack, so that is what the plan is.
    return [plan for pack in packs for plan in batch.plan(draws[pack_of[place] == pack], max_tokens=max_tokens)]
