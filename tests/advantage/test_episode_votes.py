"""An episode has one vote, whatever the number of its lanes."""

from __future__ import annotations

import numpy as np
import pytest

import agentrl_core as arl
from agentrl_core import advantage, recipes


def lanes(rewards: list[list[float]], steps: int = 1) -> arl.Batch:
    """Return a group in which each member plays an episode with a reward for each lane."""
    forest = arl.Forest()
    forest.add_group(0, "task")
    for member, of_lanes in enumerate(rewards):
        leader = None
        for agent, reward in enumerate(of_lanes):
            trajectory = forest.start(0, member, agent=agent, episode=leader)
            leader = trajectory if leader is None else leader
            forest.append(trajectory, [1, 2 + agent], kind="prompt")
            for _ in range(steps + agent):
                forest.append(trajectory, [10 + member, 20 + agent], kind="action", logprobs=[-0.5, -0.5])
                forest.step(trajectory, reward=reward)
                forest.append(trajectory, [5], kind="observation")
            forest.finish(trajectory, reward=reward)
    return forest.freeze()


def test_three_lanes_of_one_episode_vote_once() -> None:
    batch = lanes([[1.0, 1.0, 1.0], [0.0], [0.0], [1.0]])
    once = recipes.GRPO.replace(advantage=advantage.GroupRelative(scale="none", voter="episode")).credit(batch)
    assert once.column("advantage", "draw").tolist() == [0.5, 0.5, 0.5, -0.5, -0.5, 0.5]
    others = advantage.GroupRelative(scale="none", center="leave_one_out", voter="episode")
    left_out = recipes.GRPO.replace(advantage=others).credit(batch).column("advantage", "draw")
    np.testing.assert_allclose(left_out, [2 / 3] * 3 + [-2 / 3, -2 / 3, 2 / 3], atol=1e-6)


@pytest.mark.parametrize("level", ["draw", "step", "token"])
@pytest.mark.parametrize("seed", range(4))
def test_the_mean_and_spread_are_those_of_episodes(level: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards = [rng.integers(0, 5, rng.integers(1, 4)).astype(float).tolist() for _ in range(rng.integers(2, 6))]
    batch = lanes(rewards, steps=2)
    link = advantage.GroupRelative(level=level, voter="episode", eps=0.0)  # type: ignore[arg-type]
    actual = recipes.GRPO.replace(advantage=link).credit(batch).column("advantage", level)  # type: ignore[arg-type]
    # A vote is the mean over the rows of an episode, in which lane k has 2 + k steps of two tokens.
    counts = [np.ones(len(each)) if level == "draw" else 2.0 + np.arange(len(each)) for each in rewards]
    votes = np.array([np.average(each, weights=count) for each, count in zip(rewards, counts, strict=True)])
    scores = np.asarray(batch.column("reward", "draw"), np.float64)
    rows = scores if level == "draw" else np.repeat(scores, np.diff(batch.offsets("step")))
    rows = np.repeat(rows, np.diff(batch.offsets("token"))) if level == "token" else rows
    spread = votes.std(ddof=1)
    expected = (rows - votes.mean()) / spread if spread > 0 else np.zeros(len(rows))
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_rows_of_an_episode_may_share_a_value() -> None:
    batch = lanes([[1.0, 0.0], [0.0]])
    link = advantage.GroupRelative(scale="none", voter="episode", output="voter")
    assert recipes.GRPO.replace(advantage=link).credit(batch).column("advantage", "draw").tolist() == [
        0.25,
        0.25,
        -0.25,
    ]
