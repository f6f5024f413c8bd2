"""Credit over token trees, beside the public functions of TreePO and Tree-GRPO.

    python bench/tree_credit.py --treepo path/to/core_algos.py --tree-grpo path/to/core_algos.py [--branching 4]

Both files are `verl/trainer/ppo/core_algos.py` of the forks of the projects, and need an installed verl. Each row has
one token, which measures the peers' own work without its broadcast over tokens.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from common import Bench, load

from agentrl_core import group
from agentrl_core.operators import tree


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--treepo", metavar="PATH", help="TreePO's verl/trainer/ppo/core_algos.py")
    parser.add_argument("--tree-grpo", metavar="PATH", help="Tree-GRPO's verl/trainer/ppo/core_algos.py")
    parser.add_argument("--branching", type=int, default=4)
    parser.add_argument("--depth", type=int, default=6)
    options = parser.parse_args()
    rows = options.branching**options.depth
    rng = np.random.default_rng(0)
    rewards = rng.integers(0, 2, size=rows).astype(np.float64)
    # The path of a row: its prompt, then its branch at each depth.
    digits = np.stack([np.arange(rows) // options.branching**power for power in range(options.depth, -1, -1)], axis=1)
    paths = digits % options.branching
    elements, offsets = paths.ravel(), np.arange(rows + 1) * (options.depth + 1)
    parents, nodes = tree.build(elements, offsets)
    batch = np.zeros(rows, np.uint32)
    scores, mask = torch.from_numpy(rewards)[:, None], torch.ones(rows, 1, dtype=torch.float64)

    def from_tree() -> np.ndarray:
        return group.whiten(tree.ancestor_relative(parents, nodes, rewards, singleton="raw"), batch)

    def from_paths() -> np.ndarray:
        built = tree.build(elements, offsets)
        return group.whiten(tree.ancestor_relative(*built, rewards, singleton="raw"), batch)

    bench = Bench("tree_credit")
    work = f"TreePO, {rows} leaves, depth {options.depth}"
    if options.treepo is None:
        bench.alone(f"{work}, tree at hand", from_tree, "give --treepo PATH", runs=50)
        bench.alone(f"{work}, tree built from paths", from_paths, "give --treepo PATH", runs=50)
    else:
        treepo = load(options.treepo, "treepo_core_algos")
        names = np.array(["#".join(map(str, path)) for path in paths], dtype=object)

        def by_strings() -> np.ndarray:
            result = treepo.compute_tree_reinforce_plus_plus_baseline_outcome_advantage(scores.clone(), mask, names)
            return result[0][:, 0].numpy()

        bench.against(f"{work}, tree at hand", "TreePO", from_tree, by_strings, runs=50, goal=2000.0)
        bench.against(f"{work}, tree built from paths", "TreePO", from_paths, by_strings, runs=50, goal=1000.0)

    prompts, trees = np.arange(rows) // 16, np.arange(rows) // 4

    def nested() -> np.ndarray:
        inner = group.normalise(rewards, prompts, singleton="raw")
        return group.normalise(inner, trees, singleton="raw")

    work = f"Tree-GRPO, {rows} leaves, trees of 4, prompts of 16"
    if options.tree_grpo is None:
        bench.alone(work, nested, "give --tree-grpo PATH", runs=50)
    else:
        tree_grpo = load(options.tree_grpo, "tree_grpo_core_algos")

        def by_loops() -> np.ndarray:
            result = tree_grpo.compute_tree_grpo_outcome_advantage(scores.clone(), mask, prompts, trees)
            return result[0][:, 0].numpy()

        bench.against(work, "Tree-GRPO", nested, by_loops, runs=50, goal=400.0, tolerance=1e-4)
    bench.write(rows=rows, nodes=len(parents))


if __name__ == "__main__":
    main()
