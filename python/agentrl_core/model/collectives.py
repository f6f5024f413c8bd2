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
    own_count = torch.tensor([count], device=device)
    counts = [torch.empty_like(own_count) for _ in range(group.size())]
    distributed.all_gather(counts, own_count, group=group)
    return [int(number) for number in counts]


def gathered_rows(values: Tensor, counts: list[int], group: Group) -> list[Tensor]:
    """Gather the rows of all ranks, which may have different numbers of rows, on each rank."""
    padded = values.new_zeros((max(counts), *values.shape[1:]))  # all ranks pad to the longest
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(parts, padded, group=group)
    return [rows[:count] for rows, count in zip(parts, counts, strict=True)]


def gathered_objects(value: _Value, group: Group) -> list[_Value]:
    """Gather a Python object from every rank, on each rank, in the order of ranks."""
    values: list[Any] = [None] * group.size()
    distributed.all_gather_object(values, value, group=group)
    return values


def gathered_on_first(value: _Value, group: Group) -> list[_Value]:
    """Gather a Python object from every rank on the first rank; other ranks get an empty list."""
    values: list[Any] | None = [None] * group.size() if group.rank() == 0 else None
    distributed.gather_object(value, values, group=group, group_dst=0)
    return values or []


def over_ranks(
    numbers: Mapping[str, float], group: Group, reduce: Callable[[str], Callable[[float, float], float]]
) -> dict[str, float]:
    """Reduce numbers by name over the ranks, and return the same result on each; a rank may lack some numbers.

    Args:
        numbers: the numbers of this rank, by name.
        group: the ranks.
        reduce: returns, for a name, the function of two numbers that reduces them.
    """
    reduced: dict[str, float] = {}
    for numbers_of_rank in gathered_objects(dict(numbers), group):
        for name, value in numbers_of_rank.items():
            reduced[name] = reduce(name)(reduced[name], value) if name in reduced else value
    return reduced


def from_first(make: Callable[[], _Value], group: Group) -> _Value:
    """Call a function on the first rank of a group, and return its result on all ranks; errors are raised on each.

    Args:
        make: called on the first rank alone.
        group: the ranks.
    """
    parcel: list[Any] = [_made(make) if group.rank() == 0 else None]
    distributed.broadcast_object_list(parcel, group=group, group_src=0)
    return _opened(parcel[0])  # type: ignore[no-any-return]


def parts_of_first(make: Callable[[], Iterable[_Value]], group: Group) -> _Value:
    """Make a part for every rank on the first rank, and return this rank's part; errors are raised on each rank.

    Each part is pickled as soon as it is made, so that the parts are not in memory twice.

    Args:
        make: makes the parts of all ranks in the order of ranks; called on the first rank alone.
        group: the ranks.
    """
    parcel: list[Any] = [None]
    pickled: list[bytes] | None = None
    if group.rank() == 0:
        pickled, error = _made(lambda: [pickle.dumps((part, None), protocol=5) for part in make()])
        pickled = pickled or [pickle.dumps((None, error))] * group.size()
    distributed.scatter_object_list(parcel, pickled, group=group, group_src=0)
    return _opened(pickle.loads(parcel[0]))  # type: ignore[no-any-return]  # noqa: S301 -- of the first rank


def check_first_has(batch: object | None, group: Group) -> None:
    """Require that exactly the first rank of a group has the batch.

    Raises:
        InvalidInputError: another rank has a batch, or the first has none; on every rank.
    """
    for rank, has_batch in enumerate(gathered_objects(batch is not None, group)):
        if has_batch == (rank > 0):
            wrong, remedy = ("has one", "give None there") if has_batch else ("has none", "give the batch there")
            raise InvalidInputError(
                f"batch: {group.size()} ranks work on the batch of rank 0, but rank {rank} {wrong}; {remedy}"
            )


def _made(make: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return the result of a function and None, or None and the error that it raised."""
    try:
        return make(), None
    except Exception as error:  # noqa: BLE001 -- on any error the other ranks must not wait forever
        return None, error


def _opened(parcel: tuple[Any, Exception | None]) -> Any:
    value, error = parcel
    if error is not None:
        raise error
    return value
