"""Apply the replay phase to a batch: inject stored trajectories into its groups, or mix them in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component.state import State
from agentrl_core.data.batch import Batch
from agentrl_core.data.replayed_draws import Draws
from agentrl_core.data.store import Store
from agentrl_core.replay.base import Replay

_INJECT, _MIX = 1, 2
"""Keys of the random numbers of injection and of mixing."""


@dataclass(frozen=True)
class ReplayPhase:
    """The replay components of an iteration, with their states.

    Attributes:
        chain: the components and their states, in order.
        store: holds the stored trajectories; None if there is no replay.
        seed: seed of the run.
        iteration: its number.
    """

    chain: Sequence[tuple[Replay, State]]
    store: Store | None
    seed: int
    iteration: int

    def inject(self, batch: Batch, score: Callable[[Batch], Batch], before: int, held: int) -> Batch:
        """Return the batch of a round with stored trajectories injected into its groups, scored again if any were.

        Args:
            batch: the round.
            score: phase reward.
            before: number of groups judged in earlier rounds.
            held: number of leading groups of the batch that were judged before; they stay unchanged.
        """
        for place, (replay, state) in enumerate(self.chain):
            groups = batch.keys("group_id", "draw")
            injected: list[Draws] = []
            for group in range(held, len(np.unique(groups))):
                rows = np.flatnonzero(groups == group)
                key = _core.rng.structural_seed(self.seed, self.iteration, _INJECT, place, before + group - held)
                draws = replay.inject(state, batch.select_draws(rows), key)
                if draws is not None and len(draws.trajectory_ids):
                    injected.append(_moved(draws, rows, sum(_new_groups(each) for each in injected)))
            if injected:
                batch = score(self._joined(batch, _together(injected)))
        return batch

    def mix(self, batch: Batch, score: Callable[[Batch], Batch]) -> Batch:
        """Return the batch of admitted groups with stored trajectories mixed in, scored again if any were."""
        for place, (replay, state) in enumerate(self.chain):
            key = _core.rng.structural_seed(self.seed, self.iteration, _MIX, place)
            draws = replay.mix(state, batch, key)
            if draws is not None and len(draws.trajectory_ids):
                batch = score(self._joined(batch, draws))
        return batch

    def _joined(self, batch: Batch, draws: Draws) -> Batch:
        store = cast("Store", self.store)  # a collector with replay has a store
        stored = store.trajectory_batch(np.unique(draws.trajectory_ids[draws.trajectory_ids >= 0]))
        return batch.with_stored_draws(stored, draws)


def _moved(draws: Draws, rows: NDArray[np.int64], groups: int) -> Draws:
    """Renumber draws that joined one group: row numbers of the group become row numbers of the batch."""
    replaces = np.where(draws.replaces >= 0, rows[np.maximum(draws.replaces, 0)], -1)
    ids = draws.trajectory_ids
    trajectory_ids = np.where(ids < 0, -1 - rows[np.maximum(-1 - ids, 0)], ids)
    columns = {each.name: getattr(draws, each.name) for each in fields(draws)}
    changes = {"trajectory_ids": trajectory_ids, "replaces": replaces, "new_group": draws.new_group + np.int32(groups)}
    return Draws(**columns | changes)


def _new_groups(draws: Draws) -> int:
    """Return the number of new groups that draws form: the largest group number plus 1, or 0."""
    new = draws.new_group[draws.votes_in == Draws.NEW_GROUP]
    return int(new.max()) + 1 if len(new) else 0


def _together(parts: list[Draws]) -> Draws:
    """Concatenate the draws of several groups."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for name in (each.name for each in fields(Draws)):
        values = [getattr(part, name) for part in parts]
        if name == "columns":
            names = dict.fromkeys(key for each in values for key in each)
            lengths = [len(part.trajectory_ids) for part in parts]
            columns[name] = {
                key: np.concatenate(
                    [each.get(key, np.full(n, np.nan, np.float32)) for each, n in zip(values, lengths, strict=True)]
                )
                for key in names
            }
        elif name == "reason":
            columns[name] = [text for each in values for text in each]
        elif any(value is None for value in values):
            columns[name] = None
        else:
            columns[name] = np.concatenate(values)
    return Draws(**columns)
