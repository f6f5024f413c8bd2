"""Per-token numbers that are equal on all branches that share a token."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from updates import Rollouts

from agentrl_core import Batch


def contexts(batch: Batch, draws: NDArray[np.int64]) -> dict[int, list[int]]:
    """Return the tokens before every trained token, from the sequence layout."""
    result = {}
    for pack in batch.plan(draws, 10**6):
        for source, token in zip(pack.source_row, pack.token, strict=True):
            begin = pack.cu_seqlens[np.searchsorted(pack.cu_seqlens, source, side="right") - 1]
            result[int(token)] = pack.input_ids[begin : source + 1].tolist()
    return result


def places(batch: Batch) -> NDArray[np.int64]:
    """Return a number for each action token; equal trained tokens after equal tokens get the same number."""
    tokens = batch.column("token", "token")
    numbers: dict[object, int] = {}
    before = contexts(batch, np.arange(batch.num_draws))
    keys = [(tuple(before[token]), tokens[token]) if token in before else token for token in range(len(tokens))]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def by_place(rollouts: Rollouts, value_and_gradients: tuple[Tensor, list[Tensor]]) -> tuple[Tensor, list[Tensor]]:
    """Sum gradients over the branches of each token, as the gradient of a model does."""
    rows = torch.from_numpy(places(rollouts.batch))
    summed = [torch.zeros_like(gradient).index_add(0, rows, gradient) for gradient in value_and_gradients[1]]
    return value_and_gradients[0], summed


def agree_on_branches(rollouts: Rollouts) -> None:
    """Give model outputs, and all columns but advantages, the same value on all branches."""
    _, first, place = np.unique(places(rollouts.batch), return_index=True, return_inverse=True)
    rows = torch.from_numpy(first[place])
    with torch.no_grad():
        for leaf in rollouts.leaves.values():
            leaf.copy_(leaf[rows].clone())
    batch = rollouts.batch
    columns = {
        name: batch.column(name, "token")[first[place]]
        for name in (
            "reference_logprob",
            "recomputed_logprob",
            "proximal_logprob",
            "other_logprob",
            "old_mean_logprob",
            "imitation",
            "dependency",
            "clip_low",
            "clip_high",
            "entropy_history",
            "return",
            "old_value",
            "gain",
            "trust",
            "slope",
            "worse_members",
            "expert",
            "stratum",
        )
    }
    rollouts.batch = batch.with_columns("token", **columns)
