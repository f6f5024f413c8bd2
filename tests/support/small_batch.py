"""A small batch with forks, several steps and an invalid draw."""

from __future__ import annotations

import numpy as np

from agentrl_core import Batch, Forest

VOCABULARY = 31


def grow(seed: int = 0, *, groups: int = 3, unrewarded: tuple[int, int] | None = (1, 1)) -> Batch:
    """Return per group three trajectories of one to three steps; the first has a branch in its action and one after."""
    rng = np.random.default_rng(seed)
    forest = Forest(iteration=4, seed=seed)

    def words(count: int) -> list[int]:
        return rng.integers(0, VOCABULARY, size=count).tolist()

    def act(trajectory: int, reward: float | None) -> int:
        count = int(rng.integers(2, 6))
        node = forest.append(
            trajectory,
            words(count),
            kind="action",
            logprobs=(-rng.uniform(2.5, 4.0, size=count)).tolist(),
            temperature=float(rng.uniform(0.7, 1.3)),
            policy_version=4,
        )
        forest.step(trajectory, reward=reward)
        return node

    def go_on(trajectory: int, steps: int) -> None:
        for step in range(steps):
            state = f"state {rng.integers(0, 2)}"
            forest.append(trajectory, words(3), kind="observation", state=state)
            act(trajectory, 0.5 if step else None)

    for group in range(groups):
        forest.add_group(group, f"task {group}")
        prompt = words(4)
        for member in range(3):
            trajectory = forest.start(group, member)
            forest.append(trajectory, prompt, kind="prompt")
            first = act(trajectory, None)
            if member == 0:
                branch = forest.fork(trajectory, node=first, end=1)
                act(branch, None)
                go_on(branch, 1)
                late = forest.fork(trajectory, node=first)
                go_on(late, 2)
                forest.finish(late, reward=float(rng.integers(0, 3)), success=True)
                forest.finish(branch, reward=float(rng.integers(0, 3)), success=True)
            go_on(trajectory, member)
            rewarded = (group, member) != unrewarded
            forest.finish(trajectory, reward=float(rng.integers(0, 3)) if rewarded else None, success=False)
    return forest.freeze()
