"""The cost of one batch on many trainer ranks: sending it, planning an update, and the packs of one rank.

    python bench/ranks.py [--ranks 1 8 64 1024] [--trajectories 8192]

Trajectories of 2 000 tokens share prompts in groups of 16: 16 million tokens as a rule. Rank 0 computes the credit.
Every rank gets the whole batch with its columns, plans all packs and makes its own. The CPU seconds of each part are
printed, then their sum for one rank, also with a credit of its own (for recipes whose credit reads columns of models),
and the bytes that it receives and that its packs have. Rank 0's columns are compared with those that arrive, and the
trained tokens of all ranks together with those of one.
"""

from __future__ import annotations

import argparse
import pickle
import resource
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from common import Bench

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.model.pack import Pack

Value = TypeVar("Value")
MEMBERS, TURNS, LENGTH, PROMPT, MAX_TOKENS = 16, 8, 125, 300, 16_384


def batch_of(groups: int) -> arl.Batch:
    """Return a batch of groups, half of whose tokens are actions."""
    rng, forest, paths = np.random.default_rng(0), arl.Forest(), []
    for group in range(groups):
        forest.add_group(group, f"task {group}")
        prompt = rng.integers(0, 50_000, PROMPT, np.int32)
        for member in range(MEMBERS):
            paths.append(forest.start(group, member))
            forest.append(paths[-1], prompt, kind="prompt")
    count = len(paths) * LENGTH
    offsets = np.arange(len(paths) + 1) * LENGTH
    for _ in range(TURNS):
        logprobs = -rng.random(count, np.float32), offsets
        forest.append_many(paths, (rng.integers(0, 50_000, count, np.int32), offsets), kind="action", logprobs=logprobs)
        for path in paths:
            forest.step(path)
        forest.append_many(paths, (rng.integers(0, 50_000, count, np.int32), offsets), kind="observation")
    for path in paths:
        forest.finish(path, reward=float(rng.random()))
    return forest.freeze()


def measured(bench: Bench, work: str, call: Callable[[], Value], **more: float) -> Value:
    """Return the result of a call, and keep a line of its cost."""
    busy = time.process_time()
    value = call()
    line = {"work": work, "cpu_s": round(time.process_time() - busy, 4), **more}
    bench.lines.append(line)
    print(f"{work:<44} {line['cpu_s']:9.4f} s CPU  {more or ''}", flush=True)
    return value


def size_of(pack: Pack) -> int:
    """Return the bytes of the tensors of a pack."""
    tensors = [*vars(pack).values(), *pack.streams.values()]
    return sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))


def main() -> None:
    """Send, plan and pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64, 1024])
    parser.add_argument("--trajectories", type=int, default=8192)
    options = parser.parse_args()
    bench = Bench("ranks")
    batch = batch_of(options.trajectories // MEMBERS)
    tokens = options.trajectories * 2 * TURNS * LENGTH
    bare = len(pickle.dumps(batch, protocol=5))
    batch = measured(bench, "credit, on rank 0", lambda: recipes.GRPO.credit(batch))
    own_credit = float(bench.lines[-1]["cpu_s"])
    sent = measured(bench, "pickle the batch with its credit", lambda: pickle.dumps(batch, protocol=5))
    bench.lines[-1] |= {
        "tokens": tokens,
        "bytes_per_token": round(len(sent) / tokens, 2),
        "credit_bytes": len(sent) - bare,
    }
    print(f"{tokens:,} tokens of turns, {len(sent) / tokens:.2f} bytes each; {len(sent) - bare:,} bytes of credit")
    credited = batch.column("advantage", "draw")
    batch = measured(bench, "unpickle it", lambda: pickle.loads(sent))  # noqa: S301 -- it is our own
    assert np.array_equal(batch.column("advantage", "draw"), credited, equal_nan=True)
    common = float(bench.lines[-1]["cpu_s"])
    whole = None
    for ranks in options.ranks:
        (update,) = measured(bench, f"updates, {ranks} ranks", lambda: list(recipes.GRPO.updates(batch)))
        packs = measured(
            bench,
            f"plan for {ranks} ranks",
            lambda ranks=ranks, update=update: update.pack(max_tokens=MAX_TOKENS, layout="sequence", shards=ranks),  # type: ignore[misc]
        )
        made = measured(
            bench,
            f"packs of one of {ranks} ranks",
            lambda packs=packs: [(len(pack.token), size_of(pack)) for pack in packs[0]],  # type: ignore[misc]
        )
        bench.lines[-1]["packs"] = len(made)
        assert {len(each) for each in packs} == {len(made)}
        if ranks <= 8:
            trained = sum(count for count, _ in made) + sum(len(pack.token) for each in packs[1:] for pack in each)
            assert whole is None or trained == whole
            whole = trained
        cpu = common + sum(float(line["cpu_s"]) for line in bench.lines[-3:])
        line = {
            "work": f"one of {ranks} ranks in all",
            "cpu_s": round(cpu, 4),
            "cpu_s_with_own_credit": round(cpu + own_credit, 4),
            "received_mb": round(len(sent) / 1e6, 1) if ranks > 1 else 0.0,
            "packs_mb": round(sum(size for _, size in made) / 1e6, 1),
        }
        bench.lines.append(line)
        print(
            f"{line['work']:<44} {line['cpu_s']:9.4f} s CPU "
            f"({line['cpu_s_with_own_credit']:.4f} with its own credit)  received {line['received_mb']} MB, "
            f"its packs have {line['packs_mb']} MB",
            flush=True,
        )
    bench.write(most_rss_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


if __name__ == "__main__":
    main()
