"""Weights of 4 M tokens in 2 048 sequences, beside NumPy and verl's rollout correction.

python bench/weights.py
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import Bench

from agentrl_core import weight
from agentrl_core.weight.importance import importance_weights
from agentrl_core.weight.select import top_rows

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # verl imports a part of ray that has moved
    from verl.trainer.ppo import rollout_corr_helper as verl

ROWS, LENGTH = 2_048, 2_048


def main() -> None:
    """Run the bench."""
    rng = np.random.default_rng(0)
    count = ROWS * LENGTH
    log_ratios = rng.normal(0.0, 0.02, count).astype(np.float32)
    entropies = rng.normal(size=count).astype(np.float32)
    offsets = np.arange(0, count + 1, LENGTH)
    rows = torch.from_numpy(log_ratios.reshape(ROWS, LENGTH))
    new, mask = torch.full_like(rows, -1.0), torch.ones_like(rows)
    bench = Bench("weights")

    def against(work: str, peer: str, ours: Callable[[], Any], theirs: Callable[[], Any], tolerance: float) -> None:
        bench.against(work, peer, ours, theirs, runs=15, goal=1.0, tolerance=tolerance)

    def our_weights(level: str) -> Callable[[], np.ndarray]:
        return lambda: importance_weights(log_ratios, offsets, level=level, at_most=2.0)  # type: ignore[arg-type]

    def sequence_numpy() -> np.ndarray:
        sums = np.add.reduceat(log_ratios, offsets[:-1], dtype=np.float64)
        return np.repeat(np.minimum(np.exp(np.clip(sums, -20.0, 20.0)), 2.0).astype(np.float32), LENGTH)

    def corrected(level: str) -> Callable[[], np.ndarray]:
        return lambda: (
            verl.compute_rollout_correction_weights(rows, mask, rollout_is=level, rollout_is_threshold=2.0)[0]
            .numpy()
            .ravel()
        )

    def token_numpy() -> np.ndarray:
        return np.minimum(np.exp(np.clip(log_ratios, -20.0, 20.0)), np.float32(2.0))

    against("importance weights, token", "NumPy", our_weights("token"), token_numpy, 1e-5)
    against("importance weights, token", "verl", our_weights("token"), corrected("token"), 1e-5)
    against("importance weights, sequence", "NumPy", our_weights("sequence"), sequence_numpy, 1e-5)
    against("importance weights, sequence", "verl", our_weights("sequence"), corrected("sequence"), 1e-3)

    def diagnostics() -> list[float]:
        result = weight.importance_diagnostics(log_ratios, offsets)
        return [result.k1, result.k3, result.chi_squared_token, result.chi_squared_sequence]

    def metrics() -> list[float]:
        result = verl.compute_offpolicy_metrics(new, new - rows, mask)
        return [float(result[name]) for name in ("kl", "k3_kl", "chi2_token", "chi2_seq")]

    against("divergences", "verl", diagnostics, metrics, 1e-3)

    def share_numpy() -> np.ndarray:
        place = count - count // 5
        return entropies >= np.partition(entropies, place)[place]

    against("top fifth of all tokens", "NumPy", lambda: top_rows(entropies, fraction=0.2), share_numpy, 0.0)
    bench.write()


if __name__ == "__main__":
    main()
