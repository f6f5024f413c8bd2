"""Smoke test of a wheel in an empty environment, with NumPy alone: python smoke.py."""

import sys
import tempfile
from pathlib import Path

import numpy as np

import agentrl_core as arl
from agentrl_core import advantage, recipes


def main() -> None:
    """Store a group, read it again, compute its advantages; failures are assertions."""
    forest = arl.Forest()
    forest.add_group(0, "task")
    members = [forest.start(0, member) for member in range(2)]
    forest.ingest(members, prompts=[[1, 2], [1, 2]], outputs=[[3, 4], [5]], logprobs=[[-0.1, -0.2], [-0.3]])
    for member, reward in zip(members, [1.0, 0.0], strict=True):
        forest.finish(member, reward=reward)
    batch = forest.freeze()
    with tempfile.TemporaryDirectory() as folder:
        store = arl.Store.open(Path(folder) / "run")
        store.append(batch, iteration=0)
        store.close_iteration(batch, {"iteration": 0})
        again = arl.Store.open(Path(folder) / "run", read_only=True).batch(iteration=0)
    assert again.num_draws == len(members)
    tokens = sorted(again.column("token", "node_token").tolist())
    assert tokens == [1, 2, 3, 4, 5], f"the prompt is stored once, every token is there: {tokens}"

    advantages = advantage.group_relative([1.0, 0.0], ["task", "task"])
    # Mean 1/2, deviation of the population 1/2, of the sample sqrt(1/2): (1 - 1/2) / sqrt(1/2).
    np.testing.assert_allclose(advantages, [0.5**0.5, -(0.5**0.5)], rtol=1e-5)
    assert recipes.GRPO.name == "grpo"
    sys.stdout.write(f"agentrl_core {arl.__version__} works\n")


if __name__ == "__main__":
    main()
