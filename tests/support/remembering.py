"""Training loops whose components have state; as a program, a loop that is killed repeatedly.

`python remembering.py FOLDER NAME STALENESS`: for each line of standard input, a new process continues the run until it
has closed all iterations or is killed. It prints `process N` first and `closed N` for each iteration. The parent prints
`died N`, with the signal that ended it, once the process is gone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from small_world import SmallWorld

import agentrl_core.loss.chunked_logits  # noqa: F401 -- loads torch here, and not in each of the processes
from agentrl_core import Batch, Collector, Forest, Store, _core
from agentrl_core.advantage import TrackedBaseline
from agentrl_core.component import IterationRecord, State, Where
from agentrl_core.env import StepResult, Task
from agentrl_core.recipe import Recipe
from agentrl_core.recipes import GRPO
from agentrl_core.recipes.aepo_ae import BangBang
from agentrl_core.recipes.recap import BalancedSum
from agentrl_core.recipes.vade import LearningSignal
from agentrl_core.replay import Inject, Memory, Mix
from agentrl_core.replay.inject import GroupFailed
from agentrl_core.schedule import PID, Above, AdaptiveKL, Choice, LimitStaleness
from agentrl_core.select import (
    Band,
    Beta,
    ComposedSelector,
    DynamicSampling,
    Pool,
    PoolFilter,
    PromptBandit,
    Quota,
    Selection,
    SelectionRequest,
    Selector,
    Survey,
    TopSampler,
)
from agentrl_core.select import RetryQueue as Unsolved

ITERATIONS = 12
BROUGHT = {"score": 0.3}
"""The metrics of the iteration that imports demonstrations."""


@dataclass(frozen=True)
class Weak(Selector):
    """Select tasks with the smallest mean score so far, ties at random; one is a survey; rollouts by the round."""

    def initial_state(self) -> State:
        return {"visits": np.zeros(32, np.int64), "sums": np.zeros(32), "surveyed": 0}

    def choose(self, pool: Pool, state: State, wanted: SelectionRequest, key: int) -> Selection:
        uniforms = _core.rng.uniform(np.uint64(key) + np.arange(len(pool), dtype=np.uint64), 0)
        means = state["sums"] / np.maximum(state["visits"], 1) + 0.1 * uniforms
        means[wanted.taken] = np.inf
        rows = np.argsort(means, kind="stable")[: wanted.groups + 1]
        purpose = np.zeros(len(rows), np.uint8)
        purpose[0] = 1
        chosen = Selection.of(rows, wanted.group_size)
        counts = chosen.counts + np.arange(len(rows), dtype=np.int32) % 2 + wanted.round
        return replace(chosen, counts=counts, purpose=purpose, probabilities=uniforms[rows])

    def next(self, state: State, closed: IterationRecord) -> State:
        assert closed.pool is not None
        if closed.selection is None:  # nothing was selected: it was imported
            return dict(state)
        visits, sums = state["visits"].copy(), state["sums"].copy()
        places = {task: row for row, task in enumerate(closed.pool.ids(np.arange(len(closed.pool))))}
        finished = closed.finished
        for task, score in zip(
            finished.texts("task_id", "draw"), finished.column("score", "draw").tolist(), strict=True
        ):
            visits[places[task]] += 1
            sums[places[task]] += score
        surveyed = state["surveyed"] + int((closed.selection.purpose == 1).sum())
        assert finished.num_draws == closed.selection.counts.sum(), "all that were rolled out, and no others"
        return {"visits": visits, "sums": sums, "surveyed": surveyed}


RECIPES: dict[str, Recipe] = {
    "balanced": GRPO.replace(
        # Rejects about half of the groups, so that a batch takes several rounds.
        name="balanced",
        reward=BalancedSum(columns="reward,success", window=1, temperature=0.2),
        admit=DynamicSampling(Band(at_least=0.3, at_most=0.9)),
    ),
    "tracked": GRPO.replace(name="tracked", advantage=TrackedBaseline(kind="ema", decay=0.7)),
    "everything": GRPO.replace(
        # Select, replay, advantage and two controllers have state; the selection depends on all measurements.
        name="everything",
        select=Weak(),
        replay=(
            Inject(
                Memory(per_task=3, where=Where(origin="generated", column="score", at_least=0.5)),
                when=GroupFailed(best_at_most=None, mean_below=0.35),
                count=2,
            ),
            # An expert's trajectories, imported before the first iteration.
            Mix(Memory(where=Where(origin="expert", column="score", above=0.0)), count=2, old_logprob="none"),
        ),
        advantage=TrackedBaseline(kind="ema", decay=BangBang("score", threshold=0.3, below=0.5, above=0.9)),
        admit=DynamicSampling(Band(at_least=AdaptiveKL("score", target=0.3, start=0.2, at_most=0.3, gain=0.5))),
    ),
    "parts": GRPO.replace(
        # Every stateful part of a selector, priorities that are updated, and groups that get more members.
        name="parts",
        select=ComposedSelector(
            pool=PoolFilter(below=1.0, attempts=12),
            quota=Quota(),
            track=Beta(decay=0.9, idle_decay=0.95),
            score=LearningSignal(),
            sample=TopSampler(posterior=True),
            variant=PromptBandit(2, halve_every=6, least=1),
            survey=Survey(tasks=1, rollouts=2, every=3),
            queue=Unsolved(every=2, share=0.5),
        ),
        replay=(
            Mix(
                Memory(
                    capacity=24,
                    where=Where(origin="generated", column="score", at_least=0.0),
                    max_age=6,
                    order="proportional",
                    priority="advantage",
                ),
                count=2,
            ),
            Mix(Memory(where=Where(origin="expert", column="score", above=0.0)), count=1, old_logprob="none"),
        ),
        advantage=TrackedBaseline(kind="ema", decay=PID("score", target=0.3, start=0.7, at_least=0.5, at_most=0.9)),
        admit=DynamicSampling(
            Band(at_least=AdaptiveKL("score", target=0.3, start=0.2, at_most=0.3, gain=0.5)), rejected="extend"
        ),
    ),
}

RECIPES["gated"] = RECIPES["everything"].replace(
    # The prefetch depth follows measurements too.
    name="gated",
    hooks=LimitStaleness(Choice((0, 3), by=Above("score", 0.33))),
)


def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
    """Pay and succeed by two numbers of the seed, and less for the later tasks."""
    del actions
    reward = (seed % 11) / 10 * (1.0 if task.domain == "odd" else 0.5)
    return StepResult(reward=reward, terminated=True, success=seed // 11 % 3 == 0)


def world() -> SmallWorld:
    return SmallWorld(answer)


def train(collect: Collector, *, until: int = ITERATIONS, seconds: float = 0.0) -> None:
    """Continue to a number of closed iterations; each step takes `seconds`."""
    while collect.iteration < until:
        if collect.iteration == 0 and "expert" in collect.recipe.to_toml():
            with collect.import_trajectories(BROUGHT) as forest:
                demonstrations(forest)
            print_line("closed", collect.iteration)
            continue
        batch = collect.recipe.credit(collect(tasks=4, group_size=4))
        time.sleep(seconds)
        collect.end_iteration(batch, metrics(batch))
        print_line("closed", collect.iteration)


def demonstrations(forest: Forest) -> None:
    """Add an expert's trajectories of eight tasks."""
    for number in range(8):
        forest.add_group(number, f"train {number}")
        path = forest.start(number, 0, origin="expert")
        forest.append_chats([path], [[1, 2, number, 3, 4, 9]], [[0, 0, 0, 1, 1, 1]])
        forest.finish(path, reward=number / 8)


def metrics(batch: Batch) -> dict[str, float]:
    """Return metrics like those of a trainer."""
    if not batch.num_draws:
        return BROUGHT
    return {"score": float(batch.column("score", "draw").mean())}


def collector(name: str, store: Store | None, staleness: int = 0) -> Collector:
    here = world()
    return Collector(here, here, RECIPES[name], store=store, seed=5, task_pool=32, staleness=staleness)


def outcome(store: Store) -> dict[str, Any]:
    """Return everything that a kill must not change: the trained batches and the states."""
    batches = [store.batch(iteration) for iteration in range(store.iteration)]
    trained = [batch for batch in batches if batch.num_draws]
    assert len(batches) - len(trained) <= 1, "what was brought"
    closes = pl.DataFrame(store.write_log)["state"].drop_nulls()
    states = [json.loads(text)["components"] for text in closes]
    tasks = pl.DataFrame(store.tasks).unique("task_id", keep="last", maintain_order=True).sort("task_id")
    return {
        "tokens": [batch.column("token", "token").tolist() for batch in batches],
        "scores": [batch.column("score", "draw").tolist() for batch in trained],
        "advantages": [batch.column("advantage", "draw").tolist() for batch in trained],
        "states": states,
        "arrays": {name: array.tolist() for name, array in store.arrays.items()},
        "sources": [batch.column("source", "draw").tolist() for batch in batches],
        "selections": [batch.state["selection"] for batch in trained],
        "tasks": tasks.rows(),
    }


def print_line(word: str, number: int) -> None:
    """Print a line to the parent and flush."""
    if __name__ == "__main__":
        sys.stdout.write(f"{word} {number}\n")
        sys.stdout.flush()


def again(folder: Path, name: str, staleness: int) -> None:
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            print_line("process", os.getpid())
            with Store.open(folder, sync="never") as store:
                train(collector(name, store, staleness))
            os._exit(0)
        print_line("died", -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    again(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
