"""Import trajectories sampled elsewhere into a run, for replay: chats, other runs, data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import numpy as np

from agentrl_core.data.forest import Forest
from agentrl_core.data.table_codes import CODES
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.data.batch import Batch
    from agentrl_core.data.store import Store


_FOREIGN = [CODES["origin"].index(name) for name in ("expert", "imported")]


@contextmanager
def imported(
    store: Store | None,
    iteration: int,
    facts: Mapping[str, Mapping[str, Literal["number", "key"]]],
    close: Callable[[Batch], None],
) -> Iterator[Forest]:
    """Yield a forest to the block, then store it as an iteration; see `Collector.import_trajectories`.

    Args:
        store: store of the run.
        iteration: the open iteration.
        facts: facts that rollouts of the run record.
        close: closes the iteration with its batch.

    Raises:
        InvalidInputError: the store is None, a trajectory has another origin, or the iteration has another batch.
    """
    if store is None:
        raise InvalidInputError(
            "import_trajectories: the collector has no store; make it with Collector(..., store=Store.open(path))"
        )
    forest = Forest(iteration=iteration, facts=facts)
    yield forest
    batch = forest.freeze()
    origins = np.asarray(batch.trajectories.column("origin"))
    if not np.isin(origins, _FOREIGN).all():
        row = int(np.flatnonzero(~np.isin(origins, _FOREIGN))[0])
        raise InvalidInputError(
            f"import_trajectories: trajectory {row} of the forest has origin {CODES['origin'][origins[row]]!r}; start "
            "it with forest.start(..., origin='imported') or origin='expert'"
        )
    if not store.has_batch(iteration):
        store.append(store.rebase(batch.select_draws(np.zeros(0, np.int64))), iteration=iteration)
        store.flush()
    kept = store.batch(iteration)
    if kept.num_draws or len(kept.trajectories) != len(origins):
        raise InvalidInputError(
            f"import_trajectories: iteration {iteration} of {store.path} already has another batch; close it with "
            f"end_iteration, or import at the start of the run"
        )
    close(kept)
