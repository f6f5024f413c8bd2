"""Models that programs ask for numbers: those who ask at the same time are answered together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.exceptions import InvalidInputError

Paths = Sequence[NDArray[np.int32]]
Model = Callable[[Paths], Sequence[float] | NDArray[np.floating[Any]]]
"""What says a number of each of some token paths."""


class QueryBatcher:
    """Collects what is asked in one turn of the event loop, and asks each model once for it.

    Args:
        models: by the name of the column that they answer.
    """

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._waiting: dict[str, list[tuple[Paths, asyncio.Future[list[float]]]]] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def ask(self, column: str, paths: Paths) -> list[float]:
        """A number for each path.

        Raises:
            InvalidInputError: there is no such model, or it gives another count of numbers.
        """
        if column not in self._models:
            known = ", ".join(map(repr, self._models)) or "none"
            raise InvalidInputError(
                f"ask: there is no model {column!r} (there is: {known}); give Collector(models=...)"
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
        await asyncio.sleep(0)  # whoever else asks in this turn of the loop
        waiting = self._waiting.pop(column)
        paths = [path for asked, _ in waiting for path in asked]
        try:
            numbers = _one_each(column, paths, await asyncio.to_thread(self._models[column], paths))
        except Exception as error:  # noqa: BLE001 -- whoever asked gets it
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
            return
        first = 0
        for asked, answer in waiting:
            if not answer.done():
                answer.set_result(numbers[first : first + len(asked)])
            first += len(asked)


def _one_each(column: str, paths: Paths, numbers: Sequence[float] | NDArray[np.floating[Any]]) -> list[float]:
    if len(numbers) != len(paths):
        raise InvalidInputError(
            f"ask: model {column!r} gave {len(numbers)} numbers for {len(paths)} paths; give one for each"
        )
    return [float(number) for number in numbers]
