"""Which tasks an iteration rolls out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component.component import Component
from agentrl_core.exceptions import InvalidInputError


@dataclass(frozen=True)
class Selector(Component, ABC):
    """Base of the components that choose tasks."""

    phase: ClassVar[str] = "select"

    @abstractmethod
    def choose(self, pool_size: int, iteration: int, count: int, seed: int) -> NDArray[np.int64]:
        """Indices into the pool of tasks, `int64[count]`, distinct within the iteration."""


@dataclass(frozen=True)
class Uniform(Selector):
    """Every task equally likely, without repetition inside an iteration.

    Task i gets the counter-based number u_i = uniform(structural_seed(seed, iteration) + i); the iteration takes the
    tasks in ascending order of u. So the choice depends on (seed, iteration) alone, and a larger count only adds tasks
    at the end: the second round of an iteration continues where the first stopped.

    Example:
        >>> from agentrl_core.select import Uniform
        >>> first = Uniform().choose(pool_size=100, iteration=3, count=4, seed=0)
        >>> bool((first == Uniform().choose(100, 3, 8, 0)[:4]).all())
        True
    """

    def choose(self, pool_size: int, iteration: int, count: int, seed: int) -> NDArray[np.int64]:
        """Choose tasks of one iteration.

        Args:
            pool_size: how many tasks there are.
            iteration: the iteration the choice is for.
            count: how many to take, at most `pool_size`.
            seed: the run's seed.

        Returns:
            `int64[count]`, distinct indices below `pool_size`.

        Raises:
            InvalidInputError: `count` is negative or larger than `pool_size`.
        """
        if not 0 <= count <= pool_size:
            raise InvalidInputError(
                f"count={count} tasks cannot be chosen from pool_size={pool_size}; "
                "make the pool of tasks larger or ask for fewer"
            )
        base = np.uint64(_core.rng.structural_seed(seed, iteration))
        order = np.argsort(_core.rng.uniform(base + np.arange(pool_size, dtype=np.uint64), 0), kind="stable")
        return order[:count].astype(np.int64)
