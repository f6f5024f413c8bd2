"""Exchange rows and numbers between the ranks of a process group, in any backend."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
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


def gathered_on_first(value: _Value, group: Group) -> list[_Value]:
    """Return the value of each rank on the first rank; nothing on the others."""
    found: list[Any] | None = [None] * group.size() if group.rank() == 0 else None
    distributed.gather_object(value, found, group=group, group_dst=0)
    return found or []


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


def from_first(make: Callable[[], _Value], group: Group) -> _Value:
    """Return what the first rank of a group makes, on all of them; an error there is raised on each.

    Args:
        make: called on the first rank alone.
        group: the ranks.
    """
    parcel: list[Any] = [_made(make) if group.rank() == 0 else None]
    distributed.broadcast_object_list(parcel, group=group, group_src=0)
    return _opened(parcel[0])  # type: ignore[no-any-return]


def parts_of_first(make: Callable[[], Iterable[_Value]], group: Group) -> _Value:
    """Return the part of this rank of what the first rank of a group makes; an error there is raised on each.

    Each part is pickled as it is made, and not kept besides.

    Args:
        make: makes the parts of all ranks in their order; called on the first rank alone.
        group: the ranks.
    """
    parcel: list[Any] = [None]
    given: list[bytes] | None = None
    if group.rank() == 0:
        given, error = _made(lambda: [pickle.dumps((part, None), protocol=5) for part in make()])
        given = given or [pickle.dumps((None, error))] * group.size()
    distributed.scatter_object_list(parcel, given, group=group, group_src=0)
    return _opened(pickle.loads(parcel[0]))  # type: ignore[no-any-return]  # noqa: S301 -- of the first rank


def check_first_has(batch: object | None, group: Group) -> None:
    """Refuse a batch on another rank than the first, since none would work on it.

    Raises:
        InvalidInputError: another rank has a batch, or the first has none; on every rank.
    """
    for rank, has in enumerate(gathered_objects(batch is not None, group)):
        if has == (rank > 0):
            wrong, remedy = ("has one", "give None there") if has else ("has none", "give the batch there")
            raise InvalidInputError(
                f"batch: {group.size()} ranks work on the batch of rank 0, but rank {rank} {wrong}; {remedy}"
            )


def _made(make: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what a function returns or raises."""
    try:
        return make(), None
    except Exception as error:  # noqa: BLE001 -- whatever it is, the other ranks must not wait for ever
        return None, error


def _opened(parcel: tuple[Any, Exception | None]) -> Any:
    value, error = parcel
    if error is not None:
        raise error
    return value
