"""Rollouts of several turns in verl's format."""

from __future__ import annotations

import numpy as np
import torch
import verl


def data(seed: int, *, groups: int = 4, size: int = 4, width: int = 9) -> verl.DataProto:
    """Return rollouts of several turns in verl's format: prompts padded on the left, responses on the right."""
    rng = np.random.default_rng(seed)
    rows = groups * size
    lengths, starts = rng.integers(2, width + 1, rows), rng.integers(0, 3, rows)
    inside = np.arange(width) < lengths[:, None]
    mask = inside & ((rng.random((rows, width)) < 0.7) | (np.arange(width) == 0))
    rewards = np.zeros((rows, width))
    # verl's GAE ignores rewards at tokens that were not sampled, so a reward is paid at the last sampled one.
    rewards[np.arange(rows), (mask * np.arange(width)).argmax(axis=1)] = rng.integers(0, 5, rows) / 4
    tensors = {
        "prompts": rng.integers(1, 50, (rows, 3)) * (np.arange(3) >= starts[:, None]),
        "responses": rng.integers(1, 50, (rows, width)) * inside,
        "attention_mask": np.concatenate([np.arange(3) >= starts[:, None], inside], axis=1).astype(np.int64),
        "response_mask": mask.astype(np.int64),
        "token_level_rewards": rewards,
        "rollout_log_probs": -rng.random((rows, width)) * mask,
        "values": rng.normal(size=(rows, width)),
    }
    order = rng.permutation(rows)
    return verl.DataProto.from_dict(
        tensors={name: torch.from_numpy(values[order]) for name, values in tensors.items()},
        non_tensors={"uid": np.array([f"uid {row // size}" for row in range(rows)], object)[order]},
    )
