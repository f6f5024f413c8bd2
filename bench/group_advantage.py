"""Group advantage of a million rewards in groups of 8, and of fewer: raw ids in, advantages out.

python bench/group_advantage.py [--rows 1000000] [--growth]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import polars as pl
from common import Bench, best, folder

from agentrl_core import group

GROUP = 8


def numpy_advantage(rewards: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Two bincounts of dense ids: a lower bound of the work."""
    count = np.bincount(ids)
    mean = np.bincount(ids, rewards) / count
    centred = rewards - mean[ids]
    std = np.sqrt(np.bincount(ids, centred * centred) / (count - 1))
    return centred / (std[ids] + 1e-6)


def polars_advantage(rewards: np.ndarray, ids: pl.Series) -> np.ndarray:
    """Window functions over a column of ids."""
    frame = pl.DataFrame({"reward": rewards, "id": ids})
    reward = pl.col("reward")
    advantages = frame.select((reward - reward.mean().over("id")) / (reward.std().over("id") + 1e-6))
    return advantages.to_series().to_numpy()


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--growth", action="store_true", help="also draw how cost grows from 10^3 to 10^7 rows")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = options.rows
    rewards = rng.normal(size=rows)
    ids = np.repeat(np.arange(rows // GROUP + 1), GROUP)[:rows]
    shuffled = rng.permutation(ids)
    names = pl.Series([f"task-{number:07d}" for number in ids])
    mixed_names = pl.Series([f"task-{number:07d}" for number in shuffled])
    bench = Bench("group_advantage")
    out = np.empty(rows)
    for work, group_ids, number, goals in [
        ("contiguous integer ids", ids, ids, (4.0, 6.0)),
        ("shuffled integer ids", shuffled, shuffled, (2.5, 3.0)),
        ("contiguous string ids", names, None, (0.0, 6.0)),
        ("shuffled string ids", mixed_names, None, (0.0, 3.0)),
    ]:

        def ours(group_ids: object = group_ids) -> np.ndarray:
            return group.normalise(rewards, group_ids, out=out)

        if number is not None:
            bench.against(
                work, "NumPy bincount", ours, lambda n=number: numpy_advantage(rewards, n), runs=15, goal=goals[0]
            )
        series = group_ids if isinstance(group_ids, pl.Series) else pl.Series(group_ids)
        bench.against(work, "Polars over", ours, lambda s=series: polars_advantage(rewards, s), runs=15, goal=goals[1])
    small_batches(bench, rng)
    growth = draw_growth(rng) if options.growth else None
    bench.write(rows=rows, group=GROUP, growth=growth)


def small_batches(bench: Bench, rng: np.random.Generator) -> None:
    """Compare batches of 100 to 10 000 rows, with enough calls in a row for the clock's resolution.

    Also measure 10 000 rows in pairs: each pair needs as much work as a larger group.
    """
    for rows, size in ((100, GROUP), (1_000, GROUP), (10_000, GROUP), (40_000, GROUP), (10_000, 2)):
        rewards, ids = rng.normal(size=rows), np.repeat(np.arange(rows // size + 1), size)[:rows]
        for order, group_ids in (("contiguous", ids), ("shuffled", rng.permutation(ids))):
            pairs = "" if size == GROUP else " of pairs"
            work = f"{rows} rows, {order} ids{pairs}, {100_000 // rows} calls"
            ours, theirs = (
                partial(repeated, function, rewards, group_ids) for function in (group.normalise, numpy_advantage)
            )
            bench.against(work, "NumPy bincount", ours, theirs, runs=50, goal=1.0)


def repeated(work: Callable[[np.ndarray, np.ndarray], np.ndarray], rewards: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return a function that calls another one many times."""
    for _ in range(100_000 // len(ids)):
        result = work(rewards, ids)
    return result


def draw_growth(rng: np.random.Generator) -> list[dict[str, float]]:
    """Measure from 10^3 to 10^7 rows; print milliseconds and draw a plot."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    lines = []
    for power in np.arange(3, 7.01, 0.5):
        rows = int(10**power)
        rewards, ids = rng.normal(size=rows), np.repeat(np.arange(rows // GROUP + 1), GROUP)[:rows]
        shuffled, series, out = rng.permutation(ids), pl.Series(ids), np.empty(rows)
        runs = 20 if rows < 10**6 else 5
        lines.append(
            {
                "rows": rows,
                "contiguous": best(partial(group.normalise, rewards, ids, out=out), runs),
                "shuffled": best(partial(group.normalise, rewards, shuffled, out=out), runs),
                "numpy": best(partial(numpy_advantage, rewards, ids), runs),
                "polars": best(partial(polars_advantage, rewards, series), runs),
            }
        )
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    labels = {
        "contiguous": "agentrl_core, contiguous ids",
        "shuffled": "agentrl_core, shuffled ids",
        "numpy": "NumPy bincount, contiguous ids",
        "polars": "Polars over, contiguous ids",
    }
    for name, label in labels.items():
        axes.loglog([line["rows"] for line in lines], [line[name] for line in lines], marker="o", label=label)
    axes.set(xlabel="rewards", ylabel="milliseconds", title="Group advantage: raw ids in, advantages out")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(folder() / "group_advantage_growth.png", dpi=120)
    return lines


if __name__ == "__main__":
    main()
