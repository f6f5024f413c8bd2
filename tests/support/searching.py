"""Searches that are killed while they run: `python searching.py FOLDER EVERY`.

Every program of `programs` collects two iterations into a store of its own. The first process exits without cleanup at
request `EVERY` to its engine, the next one, which resumes the run, at twice that number, and so on until all is done
(0: no process exits early). It prints `PROGRAM KILLS` for each.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from mazes import Babbler, Maze
from number_world import Numbers, SumWorld

from agentrl_core import Collector, Store, recipes, rollout
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.recipes.aepo import PremonitoredBranching
from agentrl_core.recipes.arrol import PruneRunning
from agentrl_core.recipes.bfs_prover_v2 import BestFirst
from agentrl_core.recipes.branch_grpo import FixedDepthBranching
from agentrl_core.recipes.latr import LookaheadBranching
from agentrl_core.recipes.props import UnderSampled
from agentrl_core.recipes.tree_grpo import TreeExpansion
from agentrl_core.recipes.tree_po import SegmentTree

ITERATIONS = 2
DIED = 9
LINE: dict[str, dict[int, str | float]] = {
    "a": {3: "b", 4: "c", 5: 0.0},
    "b": {3: "c", 4: "d", 5: 0.0},
    "c": {3: "d", 4: "e", 5: "b"},
    "d": {3: 1.0, 4: 0.0, 5: "e"},
    "e": {3: 0.5, 4: 0.0, 5: 0.0},
}


def words(prefix: tuple[int, ...]) -> list[tuple[int, float]]:
    """Return thirty tokens; every seventh has alternatives that are nearly as likely."""
    if len(prefix) >= 30:
        return [(9, 1.0)]
    near = len(prefix) % 7 == 0
    return [(3, 0.4), (4, 0.35), (5, 0.25)] if near else [(6 + len(prefix) % 3, 0.9), (3, 0.1)]


def programs(folder: Path) -> dict[str, rollout.Rollout]:
    """Return the programs by name; those that use stored trajectories read the store that they write."""
    return {
        "best_first": BestFirst(samples=3, width=2, budget=9, searches=str(folder / "best_first")),
        "monte_carlo": rollout.MonteCarlo(
            iterations=3, samples=2, depth=6, parallel=2, searches=str(folder / "monte_carlo")
        ),
        "under_sampled": UnderSampled(budget=7, initial=2, parallel=2),
        "fixed_depth": FixedDepthBranching(splits=2, every=1, keep="best"),
        "expansion": TreeExpansion(trees=2, rounds=2, expansions=2),
        "segments": SegmentTree(budget=6, tokens=7),
        "lookahead": LookaheadBranching(distance=0.1, tokens=30),
        "pruned": PruneRunning(tokens=7, begin=0),
        "premonitored": PremonitoredBranching(budget=7, initial=7, beam=3, entropy_weight=0.5),
    }


class Dying:
    """An engine that ends its process at a request, and delays some answers."""

    def __init__(self, engine: Any, at: int) -> None:
        self._engine, self._remaining = engine, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Request) -> Segment:
        self._remaining -= 1
        if self._remaining == 0:
            os._exit(DIED)
        segment: Segment = await self._engine.generate(request)
        return segment


def world_of(name: str) -> tuple[Any, Any]:
    """Return the engine and the environment of a program."""
    if name == "premonitored":
        return Numbers(), SumWorld()
    if name in ("segments", "lookahead", "pruned"):
        return (babbler := Babbler(words)), babbler
    maze = Maze(LINE, lambda seed, place, number: (3 + (seed >> 5) % 3, -0.1 - (seed % 7) / 7))  # noqa: ARG005
    return maze, maze


def train(folder: Path, name: str, at: int) -> None:
    """Continue until all iterations are closed."""
    engine, world = world_of(name)
    recipe = recipes.GRPO.replace(rollout=programs(folder)[name])
    with Store.open(folder / name, sync="never") as store:
        while store.iteration < ITERATIONS:
            collect = Collector(
                Dying(engine, at),
                world,
                recipe,
                store=store,
                seed=3,
                task_pool=2,
                context_tokens=200,
                sampling=Sampling(max_tokens=64),
            )
            collect.end_iteration(collect.recipe.credit(collect(tasks=2, group_size=4)), {})


def go_on(folder: Path, name: str, every: int) -> int:
    """Return the number of kills until the run was done."""
    kills = 0
    while True:
        child = os.fork()
        if not child:
            # The first one dies early and each later one lives longer, so all runs finish.
            train(folder, name, every * (kills + 1))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return kills
        if status != DIED:
            raise SystemExit(f"{name}: {status}")
        kills += 1


if __name__ == "__main__":
    for each in programs(Path(sys.argv[1])):
        sys.stdout.write(f"{each} {go_on(Path(sys.argv[1]), each, int(sys.argv[2]))}\n")
