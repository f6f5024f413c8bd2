"""max@k off-policy: compare the loss with sums over all subsets of answers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from agentrl_core.loss import Tokens
from agentrl_core.recipes.max_at_k import OffPolicyMaxAtK


def by_subsets(rewards: np.ndarray, excess: np.ndarray, k: int) -> np.ndarray:
    """Return each answer's gradient weight: mean over subsets of k of (1 + sum of excesses) times the best reward."""
    subsets = list(combinations(range(len(rewards)), k))
    weights = np.zeros(len(rewards))
    for subset in subsets:
        members = list(subset)
        weights[members] += (1.0 + excess[members].sum()) * rewards[members].max() / len(subsets)
    return weights


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_weights_are_those_of_all_subsets(seed: int, k: int) -> None:
    generator = np.random.default_rng(seed)
    sizes = [6, 4, 1, 5]
    lengths = generator.integers(1, 4, sum(sizes))
    sequence = np.repeat(np.arange(sum(sizes)), lengths)
    group = np.repeat(np.arange(len(sizes)), sizes)
    rewards = generator.integers(0, 4, sum(sizes)) / 3.0  # with ties
    away = generator.normal(0.0, 0.3, len(sequence))
    weight = 1.0 / (len(sizes) * np.array(sizes)[group] * lengths)
    order = generator.permutation(len(sequence))  # rows of an answer, and answers of a group, are in any order
    streams = {
        "weight_kl": weight[sequence],
        "advantage_positive": (weight * rewards)[sequence],
        "advantage_negative": np.zeros(len(sequence)),
        "old_logprob": np.full(len(sequence), -1.0),
        "sequence": sequence,
        "group": group[sequence],
    }
    tensors = {name: torch.from_numpy(each[order]) for name, each in streams.items()}
    logprob = torch.from_numpy((away - 1.0)[order]).requires_grad_()
    OffPolicyMaxAtK(k=k, kl=None).evaluate(Tokens(logprob, None, tensors))[0].backward()

    ratio = np.exp(np.bincount(sequence, away))
    expected = np.zeros(sum(sizes))
    for place in range(len(sizes)):
        in_group = group == place
        if in_group.sum() >= k:
            expected[in_group] = by_subsets(rewards[in_group], np.clip(ratio[in_group] - 1.0, -0.2, 0.2), k)
    outside = np.where(expected > 0, ratio > 1.2, ratio < 0.8)
    gradients = np.zeros(len(sequence))
    gradients[order] = -logprob.grad.numpy()
    np.testing.assert_allclose(gradients, (np.where(outside, 0.0, expected) * weight * lengths)[sequence], atol=1e-12)
    assert outside.any()
