"""A collection with a real model that is killed repeatedly: `python resuming_model.py FOLDER`; see `resuming`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resuming import DIGEST, again

from agentrl_core import Collector, Store, engine, env, recipes, rollout, warm_start
from agentrl_core.collect.rollout_log import read_segment
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.rollout import Group

ITERATIONS = 2
WORLD = env.ReasoningGym(["chain_sum", "lcm"], tools=[env.Calculator()], seed=0, held_out=0)
MODEL, TOKENIZER = warm_start.build(WORLD, seed=0)
"""The model, made before a process is forked for each attempt, so that all share it."""


class Listening(engine.Transformers):
    """An engine that reports a request whose response a rollout log already holds."""

    def __init__(self, folder: Path) -> None:
        super().__init__(MODEL, TOKENIZER, batch_invariant=True)
        self.folder = folder
        self.seeds: set[int] = set()

    async def generate(self, request: Request) -> Segment:
        if request.seed in self.seeds:
            with (self.folder.parent / f"{self.folder.name}.complaints").open("a") as file:
                file.write(f"segment {request.seed}\n")
        return await super().generate(request)


@dataclass(frozen=True)
class Forks(rollout.Rollout):
    """A program that runs a round, forks inside sampled actions, reads the scores and starts one more."""

    async def group(self, group: Group) -> None:
        live = group.start_many(2)
        turns = await group.turn(live)
        live += [turn.branch.fork(turn.position(2)) for turn in turns if turn.uniform() < 0.6]
        await group.run(live)
        scores = await group.score()
        if scores.max() < 1:
            await group.run(group.start_many(1))


def train(folder: Path, store: Store) -> None:
    """Continue until all iterations are closed."""
    recipe = recipes.GRPO.replace(name="forks", rollout=Forks())
    generate = Listening(folder)
    if not store.has_batch(store.iteration):
        records: Any = store.rollout_log(store.iteration).records()
        generate.seeds = {read_segment(value[DIGEST:]).seed for name, value in records if b"/segment" in name}
    collect = Collector(
        generate,
        WORLD,
        recipe,
        store=store,
        seed=5,
        task_pool=16,
        sampling=Sampling(max_tokens=6),
        turn_limit=3,
    )
    while store.iteration < ITERATIONS:
        batch = recipe.credit(collect(tasks=3, group_size=2))
        collect.end_iteration(batch, {})
    generate.close()


if __name__ == "__main__":
    again(Path(sys.argv[1]), train)
