"""Prioritised sampling with importance weights, and updates of priorities, beside cpprb.

python bench/replay.py [--items 10000 100000 1000000 10000000] [--cpprb PATH of site-packages that has it]
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

import numpy as np
from common import Bench

from agentrl_core.replay import SumTree

ALPHA, BETA = 0.6, 0.4
BATCHES = (256, 4_096, 65_536)


def same_distribution(drawn: np.ndarray, priorities: np.ndarray) -> None:
    """Rows by tenths of the probability: a chi-square with 9 degrees of freedom."""
    powers = priorities**ALPHA
    tenth = np.minimum((10 * np.cumsum(powers) / powers.sum()).astype(np.int64), 9)
    expected = np.bincount(tenth, powers, minlength=10) / powers.sum() * len(drawn)
    counts = np.bincount(tenth[drawn], minlength=10)
    assert ((counts - expected) ** 2 / expected).sum() < 60.0, counts


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--cpprb", metavar="PATH", help="site-packages with cpprb, where this environment lacks it")
    options = parser.parse_args()
    if options.cpprb:
        sys.path.append(options.cpprb)
    try:
        peer = importlib.import_module("cpprb")
    except ImportError:
        peer = None
    bench = Bench("replay")
    for items in options.items:
        rng = np.random.default_rng(0)
        priorities = rng.random(items) + 1e-3
        tree = SumTree(priorities, exponent=ALPHA)
        buffer = None if peer is None else filled(peer, priorities)
        for batch in BATCHES:
            work = f"of {items} items {batch}"
            if buffer is None:
                bench.skipped(f"sample and weigh {work}", "pip install cpprb")
                continue
            changed, other = rng.integers(0, items, batch), rng.random(batch) + 1e-3
            key = iter(range(1 << 40))

            def ours(batch: int = batch, tree: SumTree = tree, key: Any = key) -> np.ndarray:
                rows = tree.sample(batch, next(key))
                tree.weights(rows, beta=BETA, normalise="all")
                return rows

            def theirs(batch: int = batch, buffer: Any = buffer) -> np.ndarray:
                return buffer.sample(batch, beta=BETA)["indexes"]

            for rows in (ours(), theirs()):
                same_distribution(np.asarray(rows), priorities)
            runs = 200 if batch < 65_536 else 20
            bench.against(f"sample and weigh {work}", "cpprb", ours, theirs, runs=runs, goal=5.0, read=compared)

            def update(tree: SumTree = tree, changed: np.ndarray = changed, other: np.ndarray = other) -> None:
                tree.update(changed, other)

            def update_theirs(buffer: Any = buffer, changed: np.ndarray = changed, other: np.ndarray = other) -> None:
                buffer.update_priorities(changed, other)

            bench.against(f"update {work}", "cpprb", update, update_theirs, runs=runs, goal=1.0, read=compared)

            # What a step does: cpprb makes sums again when it samples next.
            def step(ours: Any = ours, update: Any = update) -> None:
                update()
                ours()

            def step_theirs(theirs: Any = theirs, update_theirs: Any = update_theirs) -> None:
                update_theirs()
                theirs()

            bench.against(f"both {work}", "cpprb", step, step_theirs, runs=runs, goal=3.0, read=compared)
            priorities[changed] = other
    bench.write(alpha=ALPHA, beta=BETA)


def filled(peer: Any, priorities: np.ndarray) -> Any:
    """The peer's buffer with these priorities, and nothing else in it."""
    buffer = peer.PrioritizedReplayBuffer(len(priorities), {"row": {"dtype": np.int8}}, alpha=ALPHA, eps=0.0)
    buffer.add(row=np.zeros(len(priorities), np.int8), priorities=priorities)
    return buffer


def compared(_drawn: object) -> np.ndarray:
    """Draws differ by their randomness; their distribution was compared before."""
    return np.zeros(1)


if __name__ == "__main__":
    main()
