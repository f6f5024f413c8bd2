"""Collect the queries that rollout programs send to models, and run them in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.exceptions import InvalidInputError

Paths = Sequence[NDArray[np.int32]]
Model = Callable[[Paths], Sequence[float] | NDArray[np.floating[Any]]]
"""A function from token paths to one number each."""


class QueryBatcher:
    """Collect the queries of one iteration of the event loop, and call each model once.

    Args:
        models: models by the name of their column.
    """

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._waiting: dict[str, list[tuple[Paths, asyncio.Future[list[float]]]]] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def query(self, column: str, paths: Paths) -> list[float]:
        """Return a number for each path.

        Raises:
            InvalidInputError: the model does not exist, or returns another number of values.
        """
        if column not in self._models:
            known = ", ".join(map(repr, self._models)) or "none"
            raise InvalidInputError(
                f"query: model {column!r} does not exist (available: {known}); set Collector(models=...)"
            )
        answer: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(column, [])
        waiting.append((paths, answer))
        if len(waiting) == 1:
            call = asyncio.ensure_future(self._call(column))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        return await answer

    async def _call(self, column: str) -> None:
        await asyncio.sleep(0)  # waits for other queries in this iteration of the loop
        waiting = self._waiting.pop(column)
        paths = [path for queried, _ in waiting for path in queried]
        try:
            numbers = _one_each(column, paths, await asyncio.to_thread(self._models[column], paths))
        except Exception as error:  # noqa: BLE001 -- whoever asked gets it
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
            return
        first = 0
        for queried, answer in waiting:
            if not answer.done():
                answer.set_result(numbers[first : first + len(queried)])
            first += len(queried)


def _one_each(column: str, paths: Paths, numbers: Sequence[float] | NDArray[np.floating[Any]]) -> list[float]:
    if len(numbers) != len(paths):
        raise InvalidInputError(
            f"query: model {column!r} returned {len(numbers)} numbers for {len(paths)} paths; return one for each"
        )
    return [float(number) for number in numbers]
