"""Packing, beside AReaL's trie builder and verl's balancing.

    python bench/packing.py [--areal path/to/areal/models/tree_attn/tree.py] [--tokens 262144]

The input is row tokens (counted before sharing); the output is flat tensors and eight streams, four of them folded, in
reused memory. AReaL's function only builds the tries, without position ids, masks or streams; its file imports much of
its system, all unused here. verl's function is that of the installed package.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from common import Bench, best, load
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

from agentrl_core.model.buffers import PackBuffers
from agentrl_core.operators import packing

IMPORTS = (
    "areal",
    "areal.api",
    "areal.api.cli_args",
    "areal.models",
    "areal.models.tree_attn",
    "areal.models.tree_attn.constants",
    "areal.models.tree_attn.module_fsdp",
    "areal.models.tree_attn.triton_kernel",
    "areal.utils",
    "areal.utils.data",
    "areal.utils.perf_tracer",
)


@dataclass
class Rows:
    """Rows of tokens with the columns that a loss reads."""

    tokens: np.ndarray
    offsets: np.ndarray
    trained: np.ndarray
    summed: dict[str, np.ndarray]
    same: dict[str, np.ndarray]

    @classmethod
    def make(cls, tokens: int, shape: tuple[int, ...], length: int, seed: int = 0) -> Rows:
        """Return trees of one shape with `total` row tokens; branches fork `shape[depth]`-fold after each segment.

        The first segment is a prompt, the others are trained.
        """
        rng = np.random.default_rng(seed)
        paths: list[np.ndarray] = []
        while sum(map(len, paths)) < tokens:
            level = [rng.integers(0, 150_000, length)]
            for fold in shape:
                level = [
                    np.concatenate([path, rng.integers(0, 150_000, length)]) for path in level for _ in range(fold)
                ]
            paths += level
        flat = np.concatenate(paths).astype(np.int32)
        starts = np.cumsum([0, *map(len, paths)])
        trained = np.concatenate([np.arange(len(path)) >= length for path in paths])
        # Tokens that were sampled once are the same on all branches.
        same = {f"stream {name}": np.sin(flat * (name + 1.0)).astype(np.float32) for name in range(4)}
        summed = {f"sum {name}": rng.normal(size=len(flat)).astype(np.float32) for name in range(4)}
        return cls(flat, starts, trained, summed, same)

    def padded(self) -> dict[str, Any]:
        """Return the rows in AReaL's format."""
        lengths = np.diff(self.offsets)
        ids = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.int64)
        for row, (start, length) in enumerate(zip(self.offsets[:-1], lengths, strict=True)):
            ids[row, :length] = torch.from_numpy(self.tokens[start : start + length])
        return {"input_ids": ids, "attention_mask": torch.arange(ids.shape[1]) < torch.from_numpy(lengths)[:, None]}


def areal(path: str) -> ModuleType:
    """Load AReaL's file without its imports."""
    stubs = {name: mock.MagicMock() for name in IMPORTS}
    # Profiling decorators return functions unchanged.
    stubs["areal.utils.perf_tracer"].trace_perf = lambda *_, **__: lambda function: function
    with mock.patch.dict(sys.modules, stubs):
        return load(path, "areal_tree")


def tries(module: ModuleType, data: dict[str, Any]) -> Callable[[], list[int]]:
    """Call AReaL's function; return the number of tokens of each trie."""
    return lambda: module._greedy_build_tries(data, 10**9)[1]  # noqa: SLF001 - the file has no public form of it


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--areal", metavar="PATH", help="AReaL's areal/models/tree_attn/tree.py")
    parser.add_argument("--tokens", type=int, default=262_144)
    options = parser.parse_args()
    bench = Bench("packing")
    module = None if options.areal is None else areal(options.areal)
    shapes = {
        "no sharing": (1, 1),
        "8 answers to a prompt": (8,),
        "forks of 2 at 4 turns": (2, 2, 2, 2),
        "16 of 2 and 8": (2, 8),
    }
    saved = {}
    for name, shape in shapes.items():
        rows = Rows.make(options.tokens, shape, length=1024)
        buffers = PackBuffers(len(rows.tokens))

        def ours(rows: Rows = rows, buffers: PackBuffers = buffers) -> packing.TreeRows:
            return packing.tree_layout(
                rows.tokens, rows.offsets, trained=rows.trained, summed=rows.summed, same=rows.same, buffers=buffers
            )

        packed = ours()
        saved[name] = len(rows.tokens) / len(packed.input_ids)
        for key, values in rows.summed.items():
            np.testing.assert_allclose(packed.streams[key].sum(), values[rows.trained].sum(), atol=0.5)
        speed = len(rows.tokens) / best(ours, 20) / 1e3
        print(f"{name}: {speed:.0f} Mtok/s of row tokens, {saved[name]:.2f} row tokens for each that is run")
        count = len(rows.offsets) - 1

        def tokens_of(result: Any, count: int = count) -> int:
            # No loss reads the last token of a row, so our packs leave it out.
            return len(result.input_ids) + count if isinstance(result, packing.TreeRows) else sum(result)

        if module is None:
            bench.alone(f"trees, {name}", ours, "give --areal PATH", runs=20)
        else:
            bench.against(
                f"trees, {name}", "AReaL", ours, tries(module, rows.padded()), runs=20, goal=10.0, read=tokens_of
            )
        bench.lines[-1] |= {"row_tokens": len(rows.tokens), "million_tokens_per_second": speed, "saved": saved[name]}

    rng = np.random.default_rng(0)
    for items, bins in ((4096, 64), (8192, 128), (256, 64)):
        costs = rng.integers(500, 16_000, items)
        cost_list = costs.tolist()

        def theirs(cost_list: list[int] = cost_list, bins: int = bins) -> list[list[int]]:
            return get_seqlen_balanced_partitions(cost_list, bins, equal_size=False)

        def mine(costs: np.ndarray = costs, bins: int = bins) -> list[np.ndarray]:
            return packing.balanced(costs, bins)

        def most(result: Any, costs: np.ndarray = costs) -> int:
            return max(costs[list(part)].sum() for part in result)

        # Balance must be as good: within 2 % if each bin has few items, else within 0.1 %.
        tolerance = 0.02 if items < 10 * bins else 0.001
        work = f"balance, {items} in {bins}"
        bench.against(work, "verl", mine, theirs, runs=5, goal=10.0, read=most, tolerance=tolerance)
        bench.lines[-1] |= {"most": int(most(mine())), "peer_most": int(most(theirs())), "mean": costs.sum() / bins}
        print(f"  the most of a bin: {most(mine())}, verl {most(theirs())}, mean {costs.sum() / bins:.0f}")
    bench.write(tokens=options.tokens)


if __name__ == "__main__":
    main()
