"""Select tasks in a random order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentrl_core import _core
from agentrl_core.component.state import State
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.select.pool import Pool
from agentrl_core.select.selection import Selection, SelectionRequest
from agentrl_core.select.selector import Selector


@dataclass(frozen=True)
class Uniform(Selector):
    """Select every task with equal probability, without repetition in an iteration.

    Task i gets the counter-based number u_i = uniform(key + i); the iteration takes the tasks in ascending order of u.
    So the choice depends on the key alone, and each round continues after the one before.

    Example:
        >>> import numpy as np
        >>> from agentrl_core.env import Task
        >>> from agentrl_core.select import Pool, Uniform, SelectionRequest
        >>> pool = Pool([("world", Task(str(number), "?", "sums", None)) for number in range(100)])
        >>> none = np.zeros(0, np.int64)
        >>> first = Uniform().choose(pool, {}, SelectionRequest(4, 8, 0, none, iteration=3), key=7)
        >>> second = Uniform().choose(pool, {}, SelectionRequest(2, 8, 1, first.rows, iteration=3), key=7)
        >>> six = Uniform().choose(pool, {}, SelectionRequest(6, 8, 0, none, iteration=3), key=7)
        >>> six.rows.tolist() == [*first.rows.tolist(), *second.rows.tolist()]
        True
    """

    def choose(self, pool: Pool, state: State, wanted: SelectionRequest, key: int) -> Selection:  # noqa: ARG002 - knows nothing
        """Choose the next tasks of the iteration's order; later rounds return fewer if the pool has no more.

        Raises:
            InvalidInputError: the first round requests more tasks than the pool has.
        """
        if wanted.groups > len(pool) and not wanted.round:
            raise InvalidInputError(
                f"count={wanted.groups} tasks cannot be chosen from pool_size={len(pool)}; make the pool of tasks "
                "larger or ask for fewer"
            )
        begin = len(wanted.taken)
        end = min(begin + wanted.groups, len(pool))
        order = _core.select.permuted(len(pool), max(end, 0), key, np.zeros(0, np.int64))
        return Selection.of(order[begin:], wanted.group_size)
