"""Exchange rows and numbers between the ranks of a process group, in any backend."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, distributed

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.model.ranks import Group

_Value = TypeVar("_Value")


def counts_of_rows(count: int, device: torch.device, group: Group) -> list[int]:
    """Return the number of rows of each rank."""
    own = torch.tensor([count], device=device)
    counts = [torch.empty_like(own) for _ in range(group.size())]
    distributed.all_gather(counts, own, group=group)
    return [int(number) for number in counts]


def gathered_rows(values: Tensor, counts: list[int], group: Group) -> list[Tensor]:
    """Return the rows of each rank."""
    padded = values.new_zeros((max(counts), *values.shape[1:]))  # all ranks pad to the longest
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(parts, padded, group=group)
    return [rows[:count] for rows, count in zip(parts, counts, strict=True)]


def gathered_objects(value: _Value, group: Group) -> list[_Value]:
    """Return the value of each rank, in the order of ranks."""
    found: list[Any] = [None] * group.size()
    distributed.all_gather_object(found, value, group=group)
    return found


def over_ranks(
    numbers: Mapping[str, float], group: Group, reduce: Callable[[str], Callable[[float, float], float]]
) -> dict[str, float]:
    """Return numbers reduced over the ranks, the same on each; a rank may lack some.

    Args:
        numbers: those of this rank by name.
        group: the ranks.
        reduce: returns the function of two numbers that reduces those of a name.
    """
    found: dict[str, float] = {}
    for numbers_of_rank in gathered_objects(dict(numbers), group):
        for name, value in numbers_of_rank.items():
            found[name] = reduce(name)(found[name], value) if name in found else value
    return found


def check_equal(group: Group, *parts: ArrayLike) -> None:
    """Refuse ranks that share the packs of different batches, since each would run its part of another plan.

    Args:
        group: the ranks.
        parts: what the packs follow from.

    Raises:
        InvalidInputError: a rank has other parts than the first one; on every rank.
    """
    code = 0
    for part in parts:
        code = zlib.crc32(np.ascontiguousarray(part).tobytes(), code)
    codes = gathered_objects(code, group)
    others = [rank for rank, each in enumerate(codes) if each != codes[0]]
    if others:
        raise InvalidInputError(
            f"batch: {len(others)} of {group.size()} ranks (the first is rank {others[0]}) have another batch, or the "
            "same with other weights or options than rank 0; send the batch of one rank to all "
            "(torch.distributed.broadcast_object_list), and give every rank the same arguments"
        )
