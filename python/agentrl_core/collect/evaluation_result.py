"""Results of evaluations: success rates, pass@k and confidence intervals."""

from __future__ import annotations

from collections import Counter
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
    """Result of an evaluation: the number of solved rollouts and the mean reward of each task, and the rollouts.

    Attributes:
        successes: `int64[tasks]`, number of rollouts that solved each task. A task that was given several times is one
            task with the rollouts of all of them.
        samples: `int64[tasks]`, number of rollouts of each task (failed ones count as unsolved).
        task_ids: id of each task.
        domains: domain of each task.
        rewards: `float64[tasks]`, the mean reward of each task's rollouts; NaN if unknown.
        batch: the rollouts.
    """

    successes: NDArray[np.int64]
    samples: NDArray[np.int64]
    task_ids: list[str]
    domains: list[str]
    rewards: NDArray[np.float64]
    batch: Batch

    @classmethod
    def of(cls, tasks: Sequence[Task], batch: Batch, samples: int) -> Self:
        """Create the result from the rollouts of some tasks."""
        times = Counter(task.task_id for task in tasks)
        tasks = list({task.task_id: task for task in tasks}.values())
        places = {task.task_id: place for place, task in enumerate(tasks)}
        rows = np.array([places[task] for task in batch.texts("task_id", "draw")], np.int64)
        solved = batch.column("success", "draw") == 1
        rewards = batch.column("reward", "draw").astype(np.float64)
        known = np.isfinite(rewards)
        counts = np.bincount(rows[known], minlength=len(tasks))
        sums = np.bincount(rows[known], rewards[known], minlength=len(tasks))
        return cls(
            successes=np.bincount(rows[solved], minlength=len(tasks)),
            samples=samples * np.array([times[task.task_id] for task in tasks], np.int64),
            task_ids=[task.task_id for task in tasks],
            domains=[task.domain for task in tasks],
            rewards=np.where(counts > 0, sums / np.maximum(counts, 1), np.nan),
            batch=batch,
        )

    @property
    def success(self) -> float:
        """Return the mean share of solved rollouts over the tasks, in [0, 1]: an estimate of pass@1."""
        return float(np.mean(self.successes / self.samples))

    def pass_at(self, tries: int) -> float:
        """Return pass@k: the probability that at least one of k rollouts solves a task, averaged over tasks.

            pass@k = mean over tasks of 1 - C(n - c, k) / C(n, k)

        with n rollouts of which c solved the task (Chen et al., arXiv:2107.03374), which is unbiased.

        Raises:
            InvalidInputError: a task has fewer rollouts.
        """
        return float(np.mean(self._passed(tries)))

    def interval(self, tries: int = 1, *, confidence: float = 0.95) -> tuple[float, float]:
        """Return the bootstrap interval over tasks of pass@k: percentiles of resamples from a fixed seed."""
        _, low, high = bootstrap(self._passed(tries), "mean", confidence=confidence, resamples=_RESAMPLES)
        return low, high

    def by_domain(self) -> dict[str, float]:
        """Return the mean share of solved rollouts over the tasks of each domain."""
        shares = self.successes / self.samples
        return {
            domain: float(shares[[each == domain for each in self.domains]].mean())
            for domain in dict.fromkeys(self.domains)
        }

    def _passed(self, tries: int) -> NDArray[np.float64]:
        """Return 1 - C(n - c, k) / C(n, k) of each task, as a product that does not overflow."""
        if type(tries) is not int or not 1 <= tries <= int(self.samples.min()):
            raise InvalidInputError(
                f"tries={tries!r}; give a whole number from 1 to {int(self.samples.min())}, the smallest number of "
                "samples of a task"
            )
        factors = np.arange(tries)
        left = (self.samples - self.successes)[:, None] - factors
        missed = np.prod(np.maximum(left, 0) / (self.samples[:, None] - factors), axis=1)
        return np.asarray(1.0 - missed, np.float64)

    def __repr__(self) -> str:
        low, high = self.interval()
        samples = int(self.samples.max())
        return f"Evaluation({len(self.task_ids)} tasks x {samples}: success {self.success:.3f} [{low:.3f}, {high:.3f}])"
