"""Stratified bootstrap intervals of 10 runs of 50 tasks, 100 000 resamples, beside rliable.

python bench/bootstrap.py    (needs rliable and the packages that it uses: arch, pandas 2)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from common import Bench
from rliable import library, metrics

from agentrl_core import stats

STATISTICS = {"iqm": metrics.aggregate_iqm, "median": metrics.aggregate_median, "mean": metrics.aggregate_mean}


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resamples", type=int, default=100_000)
    resamples = parser.parse_args().resamples
    scores = np.random.default_rng(0).beta(2, 3, (10, 50))
    bench = Bench("bootstrap")

    def ours(name: stats.intervals.Statistic) -> Callable[[], np.ndarray]:
        return lambda: np.array(stats.bootstrap(scores, name, resamples=resamples))

    def theirs(peer: Callable[[np.ndarray], float]) -> Callable[[], np.ndarray]:
        def estimate() -> np.ndarray:
            points, intervals = library.get_interval_estimates(
                {"x": scores}, lambda x: np.array([peer(x)]), reps=resamples
            )
            return np.concatenate([points["x"], intervals["x"][:, 0]])

        return estimate

    for name, peer in STATISTICS.items():
        # The resamples differ, so the ends of the intervals agree to about a hundredth.
        bench.against(
            f"{name}, {resamples} resamples", "rliable", ours(name), theirs(peer), runs=1, goal=50, tolerance=1e-2
        )
    bench.write(resamples=resamples)


if __name__ == "__main__":
    main()
