"""Task selection over pools of 10 000 to 10 million tasks, beside NumPy.

python bench/selection.py

Each line checks that both sides choose the same tasks, unless the choice is random. We found no package that selects
tasks for training; public code uses NumPy.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from common import Bench, best

from agentrl_core import _core, select
from agentrl_core.env import Task
from agentrl_core.select import Pool, SelectionRequest
from agentrl_core.select.pool import MixedTasks
from agentrl_core.select.task_outcomes import TaskOutcomes

GROUPS = 256


class Numbered(Sequence[Task]):
    """A sequence that creates its tasks on access."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: Any) -> Any:
        return Task(str(row), "?", "sums", None)


def chosen(places: Any) -> np.ndarray:
    return np.sort(np.asarray(places))


def heap_greedy(rates: np.ndarray, total: int) -> np.ndarray:
    """Allocate rollouts one by one, in Python."""
    counts, weights = np.full(len(rates), 2), rates * (1 - rates) ** 2

    def gain(row: int) -> float:
        p, n = float(rates[row]), int(counts[row])
        return float(weights[row] * (p**n * (1 - p) + (1 - p) ** n * p))

    heap = [(-gain(row), row) for row in range(len(rates))]
    heapq.heapify(heap)
    for _ in range(total - int(counts.sum())):
        _, row = heapq.heappop(heap)
        counts[row] += 1
        heapq.heappush(heap, (-gain(row), row))
    return counts


def kernels(bench: Bench, size: int) -> None:
    """Measure the parts, on columns."""
    rng = np.random.default_rng(size)
    rows, none = np.arange(size), np.zeros(0, np.int64)
    scores = rng.permutation(size).astype(np.float64)
    runs = 15 if size < 10**6 else 5

    def shuffled() -> np.ndarray:
        return np.argsort(_core.rng.uniform(np.uint64(7) + rows.astype(np.uint64), 0), kind="stable")[:GROUPS]

    def largest(values: np.ndarray) -> np.ndarray:
        return np.argpartition(values, -GROUPS)[-GROUPS:]

    def gumbel() -> np.ndarray:
        return largest(scores * 100 + rng.gumbel(size=size))

    alpha, beta = 1 + 8 * rng.random(size), 1 + 8 * rng.random(size)
    name = f"{size:,}"
    bench.against(
        f"{GROUPS} of {name} evenly",
        "NumPy argsort",
        lambda: _core.select.permuted(size, GROUPS, 7, none),
        shuffled,
        runs=runs,
        goal=5,
    )
    bench.against(
        f"{GROUPS} of {name}, others not looked at",
        "NumPy choice",
        lambda: len(set(_core.select.drawn(size, GROUPS, 7, none).tolist())),
        lambda: len(set(rng.choice(size, GROUPS, replace=False).tolist())),
        runs=runs,
        goal=5,
    )
    bench.against(
        f"the best {GROUPS} of {name}",
        "NumPy argpartition",
        lambda: _core.select.top(scores, rows, GROUPS, 7),
        lambda: largest(scores),
        runs=runs,
        goal=1,
        read=chosen,
    )
    bench.against(
        f"{GROUPS} of {name} without replacement",
        "NumPy Gumbel",
        lambda: _core.select.successive(scores * 100, rows, GROUPS, 7),
        gumbel,
        runs=runs,
        goal=1,
        read=chosen,
    )
    bench.against(
        f"Beta draws of {name}",
        "NumPy beta",
        lambda: _core.select.beta_draws(alpha, beta, rows, 7),
        lambda: rng.beta(alpha, beta),
        runs=3,
        goal=1,
        read=np.mean,
        tolerance=0.03,
    )


def known(tasks: select.ComposedSelector, size: int) -> dict[str, Any]:
    """Return a state in which a tenth of the pool was visited."""
    rng = np.random.default_rng(1)
    rows = rng.choice(size, size // 10, replace=False)
    visits = TaskOutcomes(
        np.sort(rows),
        np.arange(0, 8 * len(rows) + 1, 8),
        solved := (rng.random(8 * len(rows)) < 0.5).astype(np.float64),
        solved,
        np.zeros(len(solved), np.bool_),
        np.full(len(solved), -1, np.int32),
        np.arange(len(rows)),
        len(rows),
        0,
    )
    state = tasks.initial_state()
    return state | {"rows": visits.rows, "track": tasks.track.next(state["track"], visits)}


def selectors(size: int) -> list[dict[str, Any]]:
    """Measure whole selections and the update after an iteration."""
    pool = Pool(MixedTasks({"world": Numbered(size)}))
    request = SelectionRequest(GROUPS, 8, 0, np.zeros(0, np.int64), 1)
    mopps = select.ComposedSelector(score=select.NearTarget(0.5), sample=select.TopSampler(posterior=True, among=16))
    rules = {
        "evenly, no task is looked at": select.ComposedSelector(),
        "MoPPS, 16 candidates each": mopps,
        "nearest to 1/2, all are looked at": select.ComposedSelector(score=select.NearTarget(0.5)),
        "softmax, all are looked at": select.ComposedSelector(
            score=select.NearTarget(0.5), sample=select.ProportionalSampler(temperature=0.1)
        ),
    }
    lines = []
    for work, rule in rules.items():
        state = known(rule, size)
        spent = best(lambda rule=rule, state=state: rule.choose(pool, state, request, 3), 3)  # type: ignore[misc]
        lines.append({"work": work, "tasks": size, "ours_ms": spent})
    state = known(mopps, size)
    outcomes = np.ones(8 * GROUPS)
    visits = TaskOutcomes(
        state["rows"][:GROUPS],
        np.arange(0, 8 * GROUPS + 1, 8),
        outcomes,
        outcomes,
        np.zeros(len(outcomes), np.bool_),
        np.full(len(outcomes), -1, np.int32),
        np.arange(GROUPS),
        len(state["rows"]),
        1,
    )
    spent = best(lambda: mopps.track.next(state["track"], visits), 3)
    lines.append({"work": f"what {GROUPS} visits say, {size // 10:,} tasks known", "tasks": size, "ours_ms": spent})
    for line in lines:
        print(f"{line['work']:<56} {size:>12,} tasks {line['ours_ms']:10.2f} ms")
    return lines


def main() -> None:
    """Run the bench."""
    bench, rows = Bench("selection"), []
    for size in (10**4, 10**5, 10**6, 10**7):
        kernels(bench, size)
        rows += selectors(size)
    rates = np.random.default_rng(2).random(512)
    bench.against(
        "numbers of 4 096 rollouts for 512 tasks",
        "Python heap",
        lambda: select.GreedyAllocator(low=2, high=4096).counts({}, {"estimate": rates}, 4096),
        lambda: heap_greedy(rates, 4096),
        runs=5,
        goal=5,
    )
    bench.write(selections=rows)


if __name__ == "__main__":
    main()
