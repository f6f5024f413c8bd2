"""Branches that say the same where they share tokens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from updates import Rollouts


def by_stored(rollouts: Rollouts, found: tuple[Tensor, list[Tensor]]) -> tuple[Tensor, list[Tensor]]:
    """Gradients summed over the branches of each stored token: what a model would feel."""
    _, place = np.unique(rollouts.batch.column("node_token", "token"), return_inverse=True)
    rows = torch.from_numpy(place)
    summed = [torch.zeros_like(gradient).index_add(0, rows, gradient) for gradient in found[1]]
    return found[0], summed


def agree_on_branches(rollouts: Rollouts) -> None:
    """Give what a model says, and what columns hold beside advantages, the same value on all branches."""
    stored = rollouts.batch.column("node_token", "token")
    _, first, place = np.unique(stored, return_index=True, return_inverse=True)
    rows = torch.from_numpy(first[place])
    with torch.no_grad():
        for leaf in rollouts.leaves.values():
            leaf.copy_(leaf[rows].clone())
    batch = rollouts.batch
    made = {
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
            "expert",
            "stratum",
        )
    }
    rollouts.batch = batch.with_columns("token", **made)
