"""A hash of bytes that is equal in every process."""

from __future__ import annotations

import hashlib
from typing import Literal


def stable_hash(data: bytes, *, size: int = 8, byteorder: Literal["little", "big"] = "little") -> int:
    """Return a hash of bytes: a number of `8 * size - 1` bits that is the same in every process.

    The hash of the core (`_core.rng.structural_seed`) takes whole numbers; this one takes texts, such as ids of tasks.
    Stores and seeds of runs have its numbers, so it must not change.

    Args:
        data: the data.
        size: bytes of the BLAKE2b digest.
        byteorder: order of these bytes.

    Example:
        >>> from agentrl_core._util.stable_hash import stable_hash
        >>> stable_hash(b"task 1"), stable_hash(b"task 1", size=4)
        (5403012561360036939, 1069321349)
    """
    return int.from_bytes(hashlib.blake2b(data, digest_size=size).digest(), byteorder) >> 1
