"""The number of turns that a rollout's tokens are split into changes no loss and no gradient."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from systems import LOSSES
from updates import Rollouts, close, columns, of_groups

from agentrl_core import Batch, Forest

OF_STEPS = {
    name
    for name, policy in LOSSES.items()
    if policy.unit == "step"
    or "step" in policy.streams
    or policy.denominator in ("turn_mean", "step_mean")
    or getattr(policy, "level", "") == "step"
}
"""Losses with ratios, sums, means or values of turns: these depend on the turns of a rollout."""


@functools.cache
def rolled(*, split: bool) -> Batch:
    """Return groups of two rollouts, a pair each; with `split`, the same tokens in several turns instead of one."""
    rng = np.random.default_rng(5)
    forest = Forest(seed=5)
    for group in range(5):
        forest.add_group(group, f"task {group}")
        for member in range(2):
            trajectory = forest.start(group, member)
            forest.append(trajectory, [1, group], kind="prompt")
            tokens, logprobs = rng.integers(0, 37, size=9), -rng.uniform(0.5, 4.0, 9)
            trainable = (rng.random(9) < 0.8).astype(np.uint8)
            cuts = np.sort(rng.choice(np.arange(1, 9), size=3, replace=False)).tolist()
            for first, last in itertools.pairwise([0, *(cuts if split else []), 9]):
                part = slice(first, last)
                forest.append(
                    trajectory, tokens[part], kind="action", logprobs=logprobs[part], trainable=trainable[part]
                )
                forest.step(trajectory)
            forest.finish(trajectory, reward=float(rng.normal()))
    return forest.freeze()


def test_some_losses_are_about_turns_and_most_are_not() -> None:
    assert 3 < len(OF_STEPS) < len(LOSSES) / 4
    assert len(LOSSES) - len(OF_STEPS) > 80
    assert len(rolled(split=True).steps) == 4 * len(rolled(split=False).steps)


@pytest.mark.parametrize("name", sorted(set(LOSSES) - OF_STEPS))
def test_turns_change_no_loss(name: str) -> None:
    policy = LOSSES[name]
    per = "draw" if of_groups(policy) else "token"
    leaves = Rollouts.random(policy, seed=1).leaves
    results = []
    for split in (False, True):
        rollouts = Rollouts(columns(rolled(split=split), 1, per=per), leaves)
        update = rollouts.update(policy)
        results.append(rollouts.by_packs(update, list(update.pack(max_tokens=10**6))))
    assert close(results[1], results[0], 1e-12)
