"""Prioritised sampling with importance weights, updates of priorities, and gathering of rows, beside peers.

python bench/replay.py [--items 10000 100000 1000000 10000000] [--peers PATH of site-packages that has them]

Peers are cpprb (11.0.0) and torchrl. torchrl's sum trees are a library that loads only with the torch version of its
build: no release from 0.11 to 0.14.1 loads with torch 2.13 (0.14.1 is built for 2.14.1), so it needs its own torch at
PATH. Gathered rows have 1 to 16 tokens; ours are concatenated, the peers' are padded, which is their storage format.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from common import Bench

from agentrl_core.replay.sum_tree import SumTree

ALPHA, BETA, LONGEST = 0.6, 0.4, 16
BATCHES = (256, 4_096, 65_536)
GATHERED = 1_000_000
"""With more items the padded rows of the peers would not fit in memory beside ours."""


class Peer(NamedTuple):
    """A peer's buffer: draws with weights and rows, and updates of priorities."""

    name: str
    sample: Callable[[int], Any]
    indices: Callable[[Any], np.ndarray]
    update: Callable[[np.ndarray, np.ndarray], object]


def same_distribution(drawn: np.ndarray, priorities: np.ndarray) -> None:
    """Return draws by decile of the probability: a chi-square with 9 degrees of freedom."""
    powers = priorities**ALPHA
    tenth = np.minimum((10 * np.cumsum(powers) / powers.sum()).astype(np.int64), 9)
    expected = np.bincount(tenth, powers, minlength=10) / powers.sum() * len(drawn)
    counts = np.bincount(tenth[drawn], minlength=10)
    assert ((counts - expected) ** 2 / expected).sum() < 60.0, counts


def cpprb(priorities: np.ndarray, rows: np.ndarray) -> Peer:
    """Return its buffer with these priorities."""
    library: Any = importlib.import_module("cpprb")
    width = rows.shape[1]
    fields = {"row": {"dtype": np.int32, "shape": width}}
    buffer = library.PrioritizedReplayBuffer(len(priorities), fields, alpha=ALPHA, eps=0.0)
    buffer.add(row=rows, priorities=priorities)
    return Peer(
        "cpprb",
        lambda batch: buffer.sample(batch, beta=BETA),
        lambda sample: np.asarray(sample["indexes"]),
        buffer.update_priorities,
    )


def torchrl(priorities: np.ndarray, rows: np.ndarray) -> Peer:
    """Return its buffer with these priorities."""
    torch: Any = importlib.import_module("torch")
    data: Any = importlib.import_module("torchrl.data")
    sampler = data.replay_buffers.samplers.PrioritizedSampler(len(priorities), alpha=ALPHA, beta=BETA, eps=0.0)
    storage = data.replay_buffers.storages.LazyTensorStorage(len(priorities))
    buffer = data.ReplayBuffer(storage=storage, sampler=sampler, batch_size=BATCHES[0])
    buffer.extend(torch.from_numpy(rows))
    buffer.update_priority(torch.arange(len(priorities)), torch.from_numpy(priorities))

    def update(changed: np.ndarray, other: np.ndarray) -> None:
        buffer.update_priority(torch.from_numpy(changed), torch.from_numpy(other))

    def indices(sample: Any) -> np.ndarray:
        return np.asarray(sample[1]["index"]).reshape(-1)

    return Peer("torchrl", lambda batch: buffer.sample(batch, return_info=True), indices, update)


def loaded(bench: Bench) -> list[Callable[[np.ndarray, np.ndarray], Peer]]:
    """Return the installed peers."""
    makers = []
    for make, needed in ((cpprb, "cpprb"), (torchrl, "torchrl._torchrl")):
        try:
            importlib.import_module(needed)
        except ImportError as error:
            reason = f"{error}".rsplit("/", 1)[-1][:80]  # the path of a library does not affect the figures
            bench.skipped(make.__name__, f"pip install {make.__name__}: {reason}")
        else:
            makers.append(make)
    return makers


class Ours:
    """A sum tree, and concatenated rows of different length."""

    def __init__(self, priorities: np.ndarray, rng: np.random.Generator) -> None:
        self.tree = SumTree(priorities, exponent=ALPHA)
        self.lengths = rng.integers(1, LONGEST + 1, len(priorities))
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        self.tokens = np.zeros(int(self.offsets[-1]), np.int32)
        self.keys = iter(range(1 << 40))

    def sample(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and their weights."""
        rows = self.tree.sample(batch, next(self.keys))
        return rows, self.tree.weights(rows, beta=BETA, normalise="all")

    def gathered(self, batch: int) -> tuple[np.ndarray, ...]:
        """Return the same with the tokens of the rows, concatenated, and the offset of each row."""
        rows, weights = self.sample(batch)
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1]) + np.repeat(self.offsets[rows] - (ends - lengths), lengths)
        return rows, weights, self.tokens[places], ends


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument(
        "--peers", metavar="PATH", help="site-packages with the peers, where this environment lacks them"
    )
    options = parser.parse_args()
    if options.peers:
        sys.path.insert(0, options.peers)
    bench = Bench("replay")
    peers = loaded(bench)
    for items in options.items:
        for make in peers:
            beside(bench, make, items)
    bench.write(alpha=ALPHA, beta=BETA, longest=LONGEST)


def beside(bench: Bench, make: Callable[[np.ndarray, np.ndarray], Peer], items: int) -> None:
    """Compare all operations on `items` items with one peer; its rows are small if only indices are read."""
    rng = np.random.default_rng(0)
    priorities = rng.random(items) + 1e-3
    ours = Ours(priorities, rng)
    peer = make(priorities, np.zeros((items, 1), np.int32))
    for batch in BATCHES:
        work, runs = f"of {items} items {batch}", 200 if batch < 65_536 else 15
        changed, other = rng.integers(0, items, batch), rng.random(batch) + 1e-3
        for rows in (ours.sample(batch)[0], peer.indices(peer.sample(batch))):
            same_distribution(rows, priorities)

        def update(changed: np.ndarray = changed, other: np.ndarray = other) -> None:
            ours.tree.update(changed, other)

        def update_theirs(changed: np.ndarray = changed, other: np.ndarray = other) -> None:
            peer.update(changed, other)

        # Like a training step: the peer updates its sums at the next sample, and so do we.
        def step(batch: int = batch, update: Any = update) -> None:
            update()
            ours.sample(batch)

        def step_theirs(batch: int = batch, update_theirs: Any = update_theirs) -> None:
            update_theirs()
            peer.sample(batch)

        for title, goal, mine, theirs in (
            ("sample and weigh", 5.0, lambda batch=batch: ours.sample(batch), lambda batch=batch: peer.sample(batch)),
            ("update", 1.0, update, update_theirs),
            ("both", 3.0, step, step_theirs),
        ):
            bench.against(f"{title} {work}", peer.name, mine, theirs, runs=runs, goal=goal, read=compared)
        priorities[changed] = other
    if items > GATHERED:
        return
    peer = make(priorities, np.zeros((items, LONGEST), np.int32))
    for batch in BATCHES:
        bench.against(
            f"sample, weigh, gather of {items} items {batch}",
            peer.name,
            lambda batch=batch: ours.gathered(batch),
            lambda batch=batch: peer.sample(batch),
            runs=100 if batch < 65_536 else 10,
            goal=1.0,
            read=compared,
        )


def compared(_drawn: object) -> np.ndarray:
    """Check that draws differ by their randomness alone; their distribution was compared before."""
    return np.zeros(1)


if __name__ == "__main__":
    main()
