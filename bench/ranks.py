"""The cost of one batch on many trainer ranks: planning an update, sending each rank its packs, and receiving them.

    python bench/ranks.py [--ranks 2 8 64 1024] [--trajectories 8192]

Trajectories of 2 000 tokens share prompts in groups of 16: 16 million tokens by default. Rank 0 computes the credit,
plans the update, makes all packs and pickles those of the other ranks. The bench prints the CPU seconds of each part
and the bytes that one rank receives. It compares them with the cost of sending the whole batch to a rank: the bytes of
the batch, unpickling it, `updates`, planning all packs, and making its own. It checks that received packs equal the
sent ones, and that all ranks together train the same tokens as one rank.
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
    """Return a batch of groups; half of its tokens are actions."""
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
    """Return the result of a call, and record its cost."""
    busy = time.process_time()
    value = call()
    line = {"work": work, "cpu_s": round(time.process_time() - busy, 4), **more}
    bench.lines.append(line)
    print(f"{work:<44} {line['cpu_s']:9.4f} s CPU  {more or ''}", flush=True)
    return value


def main() -> None:
    """Plan, send and receive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 64, 1024])
    parser.add_argument("--trajectories", type=int, default=8192)
    options = parser.parse_args()
    bench = Bench("ranks")
    batch = batch_of(options.trajectories // MEMBERS)
    tokens = options.trajectories * 2 * TURNS * LENGTH
    batch = measured(bench, "credit", lambda: recipes.GRPO.credit(batch))
    pickled = measured(bench, "pickle the batch with its credit", lambda: pickle.dumps(batch, protocol=5))
    bench.lines[-1] |= {"tokens": tokens, "bytes_per_token": round(len(pickled) / tokens, 2)}
    batch = measured(bench, "unpickle it", lambda: pickle.loads(pickled))  # noqa: S301 -- our own data
    unpickled = float(bench.lines[-1]["cpu_s"])
    trained = None
    for ranks in options.ranks:
        (update,) = measured(bench, f"updates, {ranks} ranks", lambda: list(recipes.GRPO.updates(batch)))
        packs = measured(
            bench,
            f"plan for {ranks} ranks",
            lambda ranks=ranks, update=update: update.pack(max_tokens=MAX_TOKENS, layout="sequence", shards=ranks),  # type: ignore[misc]
        )
        planned = sum(float(line["cpu_s"]) for line in bench.lines[-2:])
        rank_packs = measured(bench, f"make the packs of one of {ranks} ranks", lambda packs=packs: list(packs[0]))  # type: ignore[misc]
        packing_s = float(bench.lines[-1]["cpu_s"])
        sent = measured(
            bench,
            f"make and pickle the packs of the other {ranks - 1} ranks",
            lambda packs=packs: [pickle.dumps(list(each), protocol=5) for each in packs[1:]],  # type: ignore[misc]
        )
        bench.lines[-1]["bytes_per_token"] = round(sum(map(len, sent)) / tokens * ranks / (ranks - 1), 2)
        parts = measured(bench, f"unpickle the packs of one of {ranks} ranks", lambda sent=sent: pickle.loads(sent[-1]))  # type: ignore[misc]  # noqa: S301
        received = float(bench.lines[-1]["cpu_s"])
        if ranks <= 8:
            every = [rank_packs, *(pickle.loads(each) for each in sent)]  # noqa: S301
            again = update.pack(max_tokens=MAX_TOKENS, layout="sequence", shards=ranks)[-1]
            assert all(map(equal, again, parts))
            count = sum(len(pack.token) for packs_of_rank in every for pack in packs_of_rank)
            assert trained in (None, count)
            trained = count
        line = {
            "work": f"one of {ranks} ranks in all",
            "received_mb": round(max(map(len, sent)) / 1e6, 2),
            "cpu_s": round(received, 4),
            "received_mb_of_whole_batch": round(len(pickled) / 1e6, 1),
            "cpu_s_with_whole_batch": round(unpickled + planned + packing_s, 4),
        }
        bench.lines.append(line)
        print(
            f"one of {ranks} ranks receives {line['received_mb']} MB in {line['cpu_s']} s CPU; with the whole batch "
            f"{line['received_mb_of_whole_batch']} MB, and {line['cpu_s_with_whole_batch']} s"
        )
    bench.write(most_rss_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def equal(one: Pack, other: Pack) -> bool:
    """Return whether two packs have equal tensors."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("input_ids", "position_ids", "target", "token")]
    pairs += [(one.streams[name], other.streams[name]) for name in one.streams]
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


if __name__ == "__main__":
    main()
