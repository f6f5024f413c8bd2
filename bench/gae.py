"""Generalised advantage estimates that skip tool tokens, 512 x 16384, beside verl and slime.

python bench/gae.py [--slime path/to/slime/utils/ppo_utils.py]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from common import Bench, load
from verl.trainer.ppo import core_algos

from agentrl_core import returns

GAMMA, LAM = 1.0, 0.95


def spans(rng: np.random.Generator, rows: int, length: int) -> np.ndarray:
    """Return turns of about 200 trained tokens, with tool answers of about 100 tokens between them."""
    mask = np.ones((rows, length), dtype=bool)
    for row in mask:
        place = 0
        while place < length:
            place += int(rng.integers(100, 300))
            answer = int(rng.integers(50, 150))
            row[place : place + answer] = False
            place += answer
        row[-1] = True
    return mask


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slime", metavar="PATH", help="slime's slime/utils/ppo_utils.py")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--length", type=int, default=16_384)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    rows, length = options.rows, options.length
    mask = spans(rng, rows, length)
    rewards = np.zeros((rows, length), dtype=np.float32)
    rewards[:, -1] = rng.integers(0, 2, size=rows)
    values = rng.random((rows, length), dtype=np.float32)
    tensors = [torch.from_numpy(column) for column in (rewards, values)]
    float_mask = torch.from_numpy(mask).float()
    out = np.empty((2, rows, length), np.float32)
    bench = Bench("gae")

    def ours() -> tuple[np.ndarray, np.ndarray]:
        return returns.gae(rewards, values, gamma=GAMMA, lam=LAM, mask=mask, out=out)

    def ours_whitened() -> tuple[np.ndarray, np.ndarray]:
        return returns.gae(rewards, values, gamma=GAMMA, lam=LAM, whiten=True, mask=mask, out=out)

    def verl() -> tuple[torch.Tensor, torch.Tensor]:
        return core_algos.compute_gae_advantage_return(*tensors, float_mask, GAMMA, LAM)

    def trained(result: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return np.stack([np.asarray(column)[mask] for column in result])

    shape = f"{rows} x {length}"
    # verl sums 8 million float32 numbers in float32, so only three digits are compared.
    close = {"read": trained, "tolerance": 2e-3}
    bench.against(
        f"GAE skipping tools, {shape}",
        "verl (whitens too)",
        ours,
        verl,
        runs=7,
        goal=70,
        read=lambda result: np.asarray(result[1])[mask],
    )
    bench.against(f"GAE skipping tools and whitening, {shape}", "verl", ours_whitened, verl, runs=7, goal=70, **close)
    if options.slime is None:
        bench.skipped(f"GAE, {shape}", "give --slime PATH")
    else:
        slime = load(options.slime, "ppo_utils")

        def unmasked() -> tuple[np.ndarray, np.ndarray]:
            return returns.gae(rewards, values, gamma=GAMMA, lam=LAM, out=out)

        def chunked() -> tuple[torch.Tensor, torch.Tensor]:
            return slime.chunked_gae(*tensors, GAMMA, LAM)

        bench.against(
            f"GAE over all tokens, {shape}", "slime chunked_gae", unmasked, chunked, runs=7, goal=5, tolerance=1e-3
        )
    bench.write(rows=rows, length=length)


if __name__ == "__main__":
    main()
