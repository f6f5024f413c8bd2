"""Deep search trees: seconds to grow, freeze, store and render one, by number of nodes.

    python bench/deep_trees.py [--nodes 2500 5000 10000 20000]

There are two shapes. A comb is one long branch with 50 forks at each turn: each of n branches has n / 50 turns above
it, half of them on average. In a chain of forks, each branch leaves the previous one in the middle of its last action,
so the last branch is as deep as the number of branches. Seconds are CPU time of this process, all threads together.
Twice the nodes should take twice the time. The store of a comb grows faster, because it holds all steps of each branch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.view import Page

WAYS, TOKENS = 50, 4
PAGE_SECONDS, FREEZE_SECONDS = 3.0, 0.1
"""Targets: the page of a comb of 20 000 nodes, and freezing a chain of 4 000 forks."""


class Tree:
    """A forest of one group that grows by actions of random tokens."""

    def __init__(self, actions: int) -> None:
        rng = np.random.default_rng(0)
        self.forest = arl.Forest()
        self.forest.add_group(0, "a deep task")
        self.trunk = self.forest.start(0, 0)
        self.forest.append(self.trunk, [1, 2, 3], kind="prompt")
        self._tokens = rng.integers(0, 50_000, (actions, TOKENS), np.int32)
        self._logprobs = -rng.random((actions, TOKENS), np.float32)
        self._made = 0

    def act(self, path: int) -> int:
        """Append an action and return its node."""
        tokens, logprobs = self._tokens[self._made], self._logprobs[self._made]
        self._made += 1
        node = self.forest.append(path, tokens, kind="action", logprobs=logprobs, policy_version=0)
        self.forest.step(path)
        return node

    def finish(self, paths: list[int]) -> arl.Forest:
        """End all branches; reward every other one."""
        for number, path in enumerate(paths):
            self.forest.finish(path, reward=float(number % 2))
        return self.forest


def comb(nodes: int) -> arl.Forest:
    """Grow one long branch with 50 forks at each turn."""
    tree = Tree(nodes)
    paths = [tree.trunk]
    for _ in range(nodes // WAYS):
        forks = [tree.forest.fork(tree.trunk) for _ in range(WAYS - 1)]
        for path in (tree.trunk, *forks):
            tree.act(path)
        paths += forks
    return tree.finish(paths)


def chain(branches: int) -> arl.Forest:
    """Grow a chain: each branch leaves the previous one in the middle of its last action."""
    tree = Tree(2 * branches + 1)
    path, paths = tree.trunk, [tree.trunk]
    for _ in range(branches):
        path = tree.forest.fork(path, node=tree.act(path), end=TOKENS // 2)
        paths.append(path)
    for each in paths:
        tree.act(each)
    return tree.finish(paths)


def seconds_of(make: Callable[[int], arl.Forest], size: int) -> tuple[dict[str, float], dict[str, int]]:
    """Return the CPU seconds of each part, and the sizes of the results."""
    parts: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = call()
        parts[name] = time.process_time() - start
        return result

    forest = timed("grow", lambda: make(size))
    batch = timed("freeze", forest.freeze)
    with tempfile.TemporaryDirectory() as folder, arl.Store.open(folder) as store:
        batch = recipes.GRPO.score(store.rebase(batch))
        timed("store", lambda: (store.append(batch, iteration=0), store.flush()))
        store.close_iteration(batch, {})
        page = timed("page", lambda: Page.of(store))
    sizes = {"nodes": batch.nodes.num_rows, "steps": batch.steps.num_rows, "page_kb": len(page.html) // 1000}
    return parts, sizes


def main() -> None:
    """Print a line for each shape and size."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--nodes", type=int, nargs="+", default=[2500, 5000, 10_000, 20_000])
    for name, make, part in (("comb", comb, 1), ("chain", chain, 5)):
        before: dict[str, float] = {}
        for nodes in arguments.parse_args().nodes:
            parts, sizes = seconds_of(make, nodes // part)
            times = "  ".join(f"{key} {parts[key]:6.3f}{growth(before.get(key), parts[key])}" for key in parts)
            counted = ", ".join(f"{count:,} {what}" for what, count in sizes.items())
            print(f"{name:6} {nodes // part:7,}  {times}  ({counted})", flush=True)
            before = parts
    print(f"goals: page {PAGE_SECONDS} s of a comb of 20 000, freeze {FREEZE_SECONDS} s of a chain of 4 000")


def growth(before: float | None, now: float) -> str:
    """Return the ratio of a duration to that of the previous size."""
    return "        " if not before else f" (x{now / before:4.1f})"


if __name__ == "__main__":
    main()
