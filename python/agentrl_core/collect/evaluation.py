"""Evaluation: how many tasks are solved, with how many tries, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agentrl_core.data.batch import Batch
from agentrl_core.env.base import Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.stats.intervals import bootstrap

_RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What an evaluation found.

    Attributes:
        successes: `int64[tasks]`, how many rollouts of each task solved it.
        samples: `int64[tasks]`, how many rollouts of each task there are (those that failed count as unsolved).
        task_ids: of each task.
        domains: of each task.
        rewards: `float64[tasks]`, the mean reward of each task's rollouts; NaN where none is known.
        batch: the rollouts themselves.
    """

    successes: NDArray[np.int64]
    samples: NDArray[np.int64]
    task_ids: list[str]
    domains: list[str]
    rewards: NDArray[np.float64]
    batch: Batch

    @classmethod
    def of(cls, tasks: Sequence[Task], batch: Batch, samples: int) -> Self:
        """Count what the rollouts of some tasks came to, so many of each."""
        places = {task.task_id: place for place, task in enumerate(tasks)}
        rows = np.array([places[task] for task in batch.texts("task_id", "draw")], np.int64)
        solved = batch.column("success", "draw") == 1
        rewards = batch.column("reward", "draw").astype(np.float64)
        known = np.isfinite(rewards)
        counts = np.bincount(rows[known], minlength=len(tasks))
        sums = np.bincount(rows[known], rewards[known], minlength=len(tasks))
        return cls(
            successes=np.bincount(rows[solved], minlength=len(tasks)),
            samples=np.full(len(tasks), samples, np.int64),
            task_ids=[task.task_id for task in tasks],
            domains=[task.domain for task in tasks],
            rewards=np.where(counts > 0, sums / np.maximum(counts, 1), np.nan),
            batch=batch,
        )

    @property
    def success(self) -> float:
        """The mean share of solved rollouts over the tasks, in [0, 1]: an estimate of pass@1."""
        return float(np.mean(self.successes / self.samples))

    def pass_at(self, tries: int) -> float:
        """The chance that at least one of so many rollouts of a task solves it, averaged over the tasks.

            pass@k = mean over tasks of 1 - C(n - c, k) / C(n, k)

        of n rollouts of which c solved (Chen et al., arXiv:2107.03374), which is unbiased.

        Raises:
            InvalidInputError: there are not so many rollouts of each task.
        """
        return float(np.mean(self._passed(tries)))

    def interval(self, tries: int = 1, *, confidence: float = 0.95) -> tuple[float, float]:
        """Return the bootstrap interval over tasks of pass@k: percentiles of resamples from a fixed seed."""
        _, low, high = bootstrap(self._passed(tries), "mean", confidence=confidence, resamples=_RESAMPLES)
        return low, high

    def by_domain(self) -> dict[str, float]:
        """The mean share of solved rollouts over the tasks of each domain."""
        shares = self.successes / self.samples
        return {
            domain: float(shares[[each == domain for each in self.domains]].mean())
            for domain in dict.fromkeys(self.domains)
        }

    def _passed(self, tries: int) -> NDArray[np.float64]:
        """1 - C(n - c, k) / C(n, k) of each task, as a product that does not overflow."""
        if type(tries) is not int or not 1 <= tries <= int(self.samples.min()):
            raise InvalidInputError(
                f"tries={tries!r}; give a whole number from 1 to {int(self.samples.min())}, the rollouts of each task"
            )
        factors = np.arange(tries)
        left = (self.samples - self.successes)[:, None] - factors
        missed = np.prod(np.maximum(left, 0) / (self.samples[:, None] - factors), axis=1)
        return np.asarray(1.0 - missed, np.float64)

    def __repr__(self) -> str:
        low, high = self.interval()
        samples = int(self.samples.max())
        return f"Evaluation({len(self.task_ids)} tasks x {samples}: success {self.success:.3f} [{low:.3f}, {high:.3f}])"
