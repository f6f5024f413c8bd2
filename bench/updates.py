"""Preparing an update from a batch of a million action tokens, beside NumPy.

    python bench/updates.py [--draws 512] [--tokens 2048]

Our side goes from the columns of a batch to the packs of all minibatches of an epoch, whose streams are products of
weight and advantage, summed over branches. NumPy computes the products over all tokens of the batch, then sums over the
pairs of the same packs; planning and tokens are not in its time.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from common import Bench, best

import agentrl_core as arl
from agentrl_core import loss, recipes
from agentrl_core.model.pack import Pack

SUMMED = ("advantage_positive", "advantage_negative", "weight_kl")
RECIPE = recipes.GRPO.replace(loss=loss.Policy(kl=loss.KL(0.01)), minibatches=4)


def rolled(draws: int, tokens: int) -> arl.Batch:
    """Return groups of eight draws on a prompt of 128 tokens; pairs share the first half of their actions."""
    rng = np.random.default_rng(0)
    forest = arl.Forest()

    def words(count: int) -> np.ndarray:
        return rng.integers(0, 150_000, count).astype(np.int32)

    for group in range(draws // 8):
        forest.add_group(group, f"task {group}")
        prompt = words(128)
        for member in range(4):
            trunk = forest.start(group, member)
            forest.append(trunk, prompt, kind="prompt")
            forest.append(trunk, words(tokens // 2), kind="action", logprobs=-rng.uniform(0, 3, tokens // 2))
            for branch in (trunk, forest.fork(trunk)):
                forest.append(branch, words(16), kind="observation")
                forest.append(branch, words(tokens // 2), kind="action", logprobs=-rng.uniform(0, 3, tokens // 2))
                forest.finish(branch, reward=float(rng.normal()))
    batch = forest.freeze()
    count = len(batch.column("token", "token"))
    return RECIPE.credit(
        batch.with_columns(
            "node_token", reference_logprob=np.zeros(len(batch.column("token", "node_token")))
        ).with_columns("token", kl_weight=rng.uniform(0, 2, count).astype(np.float32))
    )


def packs_of(batch: arl.Batch, layout: str) -> list[list[Pack]]:
    """Return the packs of each minibatch of an epoch."""
    return [list(update.pack(max_tokens=16_384, layout=layout)) for update in RECIPE.updates(batch)]


def in_numpy(batch: arl.Batch, minibatches: list[tuple[np.ndarray, list[Pack]]]) -> dict[str, list[np.ndarray]]:
    """Return the summed streams of the same packs."""
    streams: dict[str, list[np.ndarray]] = {name: [] for name in SUMMED}
    advantage = np.asarray(batch.column("advantage", "token"), np.float32)
    factor = np.asarray(batch.column("kl_weight", "token"), np.float32)
    for weight, packs in minibatches:
        products = {
            "advantage_positive": advantage.clip(min=0) * weight,
            "advantage_negative": advantage.clip(max=0) * weight,
            "weight_kl": weight * factor,
        }
        for pack in packs:
            tokens, begins = pack.pair_tokens.numpy(), pack.pair_offsets.numpy()[:-1]
            for name, values in products.items():
                streams[name].append(np.add.reduceat(values[tokens], begins).astype(np.float32))
    return streams


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args()
    bench = Bench("updates")
    batch = rolled(options.draws, options.tokens)
    count = len(batch.column("token", "token"))
    for layout in ("sequence", "tree"):
        minibatches = [
            (batch.token_weights(update.draws, denominator=RECIPE.loss.denominator), packs)
            for update, packs in zip(RECIPE.updates(batch), packs_of(batch, layout), strict=True)
        ]
        expected = in_numpy(batch, minibatches)
        for name in SUMMED:
            streams = np.concatenate([pack.streams[name].numpy() for _, packs in minibatches for pack in packs])
            np.testing.assert_allclose(streams, np.concatenate(expected[name]), rtol=1e-6, atol=1e-12)
        ours, numpy = best(partial(packs_of, batch, layout), 5), best(partial(in_numpy, batch, minibatches), 5)
        print(
            f"{layout}: {count / 1e6:.2f} M action tokens in 4 minibatches: {ours:.0f} ms for all packs with their "
            f"streams; the streams alone in NumPy {numpy:.0f} ms"
        )
        bench.lines.append({"work": f"an epoch, {layout}", "tokens": count, "ours_ms": ours, "numpy_streams_ms": numpy})
    bench.write()


if __name__ == "__main__":
    main()
