"""Filter the pool by success rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core import _core
from agentrl_core.component import Component, option

if TYPE_CHECKING:
    from agentrl_core.component.state import State
    from agentrl_core.select.task_outcomes import TaskOutcomes


@dataclass(frozen=True)
class PoolFilter(Component):
    """Keep tasks with a success rate in a band, and tasks with too few attempts.

    The success rate is that of all attempts, or with `newest` of the last visit. A removed task returns only if other
    rollouts change its rate (surveys, the queue).

    Sources: ARPO for GUI agents, arXiv:2505.16282 (`above=0.0, attempts=16`, after a survey of 16);
    Fathom-DeepResearch arXiv:2509.24107 (`below=0.9, newest=True, per="epoch"`); AceReason-Nemotron arXiv:2505.16400
    (`at_most=6 / 16`).

    Args:
        above: success rates are larger than this; None: any.
        at_least: success rates are at least this; None: any.
        below: success rates are smaller than this; None: any.
        at_most: success rates are at most this; None: any.
        attempts: a task stays until it had this many attempts.
        spare: share of the tasks outside of the band that stays nevertheless, chosen once.
        newest: whether only the last visit counts.
        per: when tasks leave: at once, or at the end of an `epoch`, after as many trained groups as the pool has tasks.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.select import PoolFilter
        >>> PoolFilter(below=0.9, per="epoch").initial_state()["attempts"].tolist()
        []
    """

    above: float | None = option(None, at_least=0, at_most=1)
    at_least: float | None = option(None, at_least=0, at_most=1)
    below: float | None = option(None, at_least=0, at_most=1)
    at_most: float | None = option(None, at_least=0, at_most=1)
    attempts: int = option(1, at_least=1)
    spare: float = option(0.0, at_least=0, at_most=1)
    newest: bool = False
    per: Literal["iteration", "epoch"] = "iteration"

    def initial_state(self) -> State:
        """Return the first state: no attempts, and no task removed."""
        return {
            "attempts": np.zeros(0, np.int64),
            "successes": np.zeros(0, np.int64),
            "out": np.zeros(0, np.bool_),
            "epoch": 0,
        }

    def next(self, state: State, visits: TaskOutcomes, rows: NDArray[np.int64], epoch: int) -> State:
        """Return the state after an iteration: attempts, successes, and which tasks are removed.

        Args:
            state: the removed tasks before.
            visits: outcomes of the iteration.
            rows: rows of all known tasks.
            epoch: number of finished epochs.
        """
        visits = visits.subset(~np.isnan(visits.solved))
        attempts, successes, out = (visits.extended(state[name]) for name in ("attempts", "successes", "out"))
        at = visits.places
        old_weight = 0 if self.newest else 1
        attempts[at] = old_weight * attempts[at] + visits.counts
        successes[at] = old_weight * successes[at] + visits.sums(visits.solved).astype(np.int64)
        if self.per == "iteration":
            out[at] = self._outside(attempts[at], successes[at], rows[at])
        elif epoch > state["epoch"]:
            out = self._outside(attempts, successes, rows)
        return {"attempts": attempts, "successes": successes, "out": out, "epoch": epoch}

    def _outside(
        self, attempts: NDArray[np.int64], successes: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        rates = successes / np.maximum(attempts, 1)
        inside = np.ones(len(rates), np.bool_)
        inside &= True if self.above is None else rates > self.above
        inside &= True if self.at_least is None else rates >= self.at_least
        inside &= True if self.below is None else rates < self.below
        inside &= True if self.at_most is None else rates <= self.at_most
        spared = _core.rng.uniform(rows.astype(np.uint64), 0) < self.spare
        return np.asarray((attempts >= self.attempts) & ~inside & ~spared)
