"""Write the runs of `tests/data/runs`: `python runs_before_renames.py FOLDER`.

`search` has stateful components in most phases, three closed iterations and a fourth that was killed in the middle of
its groups. `arpo` has the loop of the README, two closed iterations and a third whose batch is committed and not
trained. `expected.json` has the result of each after its open iteration is finished without a kill.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import (
    advantage,
    engine,
    env,
    loss,
    recipes,
    replay,
    reward,
    rollout,
    schedule,
    select,
    warm_start,
    weight,
)
from agentrl_core.component import Where
from agentrl_core.engine.scripted import ScriptedReply
from agentrl_core.recipes.aepo_ae import BangBang
from agentrl_core.recipes.redit import NoiseReward
from agentrl_core.recipes.t_ppo import LatestVersionOnly
from agentrl_core.schedule.adaptive import LogStep
from agentrl_core.select.allocator import ProportionalAllocator

KILLED = 14
"""The request of the open iteration at which the process is killed."""
TABLES = {
    "nodes": ("group_id", "kind", "tokens", "policy_version"),
    "steps": ("trajectory_id", "step", "reward", "flags"),
    "trajectories": ("trajectory_id", "task_id", "parent_trajectory", "status", "reward", "success", "iteration"),
    "draws": ("draw_id", "trajectory_id", "source", "iteration"),
}


class Killed(SmallWorld):
    """An environment and engine that ends its process at one of its requests."""

    remaining = -1

    async def generate(self, request: engine.Request) -> engine.Segment:
        """Return a segment by the request's seed."""
        if self.remaining == 0:
            os._exit(9)
        self.remaining -= 1
        return await super().generate(request)


def answer(task: env.Task, seed: int, actions: list[str]) -> Any:
    """Play two turns, the first with a tool; pays by the seed."""
    if len(actions) < 2:
        return env.StepResult(f"{task.task_id} {len(actions)}", reward=0.25, flags=env.StepFlag.TOOL_RESULT)
    return env.StepResult(reward=float(seed % 4) / 2, terminated=True, success=seed % 4 > 1)


def search() -> arl.Recipe:
    """Return a recipe with many stateful components."""
    return recipes.GRPO.replace(
        name="search",
        source="",
        select=select.ComposedSelector(
            pool=select.PoolFilter(above=None, below=1.0, attempts=6),
            track=select.Beta(decay=0.9),
            score=select.NearTarget(0.5, width=0.1),
            sample=select.TopSampler(among=12, posterior=True),
            count=ProportionalAllocator(select.OutcomeVariance(), low=2, high=6),
            survey=select.Survey(tasks=1, rollouts=2, every=2),
            queue=select.RetryQueue(every=2, share=0.5),
        ),
        rollout=rollout.EntropyBranching(budget=4, initial=2),
        reward=(
            reward.OutcomeScore(),
            reward.CombineReward("reward", coefficient=0.5),
            NoiseReward(amplitude=0.1, only_if_std_below=0.05),
            reward.LengthPenalty(free=8, full_at=16, coefficient=schedule_of(0.1, 0.2)),
        ),
        admit=select.DynamicSampling(select.Band(std_above=None), max_rounds=2),
        advantage=(advantage.TrackedBaseline(kind="ema"), advantage.EntropyBonus(coefficient=0.2)),
        weight=(LatestVersionOnly(), weight.EntropyScaled()),
        loss=loss.Policy(
            clip=loss.Clip(0.2, BangBang("entropy", threshold=0.4, below=0.3, above=0.2)),
            kl=loss.KL(LogStep("reference_kl", target=0.05, start=0.1, at_least=0.01)),
        ),
        replay=replay.Inject(
            replay.Memory(per_task=2, where=Where(column="reward", above=0.1)),
            replay.GroupFailed(mean_below=0.3, best_at_most=None),
        ),
        hooks=(
            schedule.FreezeModel("policy", until=1),
            schedule.LimitStaleness(at_most=2, until=9),
            schedule.StopTraining(when=schedule.Above("tokens.stale", threshold=1e6)),
        ),
    )


def schedule_of(start: float, end: float) -> arl.Schedule:
    """Return a number that changes over the run."""
    return arl.Schedule(start, end, iterations=4)


def searching(store: arl.Store) -> tuple[arl.Collector, Killed]:
    """Return the collector of `search`."""
    world = Killed(answer)
    world.update_weights(None, version=store.iteration)
    return arl.Collector(world, world, search(), store=store, seed=5, task_pool=24), world


def searched(store: arl.Store, iterations: int, killed: int = -1) -> None:
    """Continue `search`, and end the process in the last iteration."""
    collect, world = searching(store)
    for iteration in range(collect.iteration, iterations):
        world.remaining = killed if iteration == iterations - 1 else -1
        batch = collect(tasks=3, group_size=4)
        rng = np.random.default_rng(iteration)
        batch = batch.with_columns("node_token", reference_logprob=-rng.random(batch.offsets("node_token")[-1]))
        batch = collect.recipe.credit(batch)
        metrics = {"loss": 0.5 / (iteration + 1), "entropy": 0.5 - iteration / 8, "reference_kl": 0.1 * iteration}
        world.update_weights(None, version=iteration + 1)
        collect.end_iteration(batch, {**metrics, "update": {"clip_fraction": 0.125}}, checkpoint=f"weights-{iteration}")


def arpo() -> arl.Recipe:
    """Return the README's recipe as the stored run has it: without a dual bound, one optimizer step per batch."""
    policy = loss.Policy(clip=loss.Clip(0.2, 0.2), aggregate="token_mean")
    return recipes.ARPO.replace(rollout=rollout.EntropyBranching(budget=6, initial=3), loss=policy, minibatches=1)


def imitating(store: arl.Store) -> arl.Collector:
    """Return the collector of `arpo`: its engine calls a tool, then guesses."""
    world = env.ReasoningGym(["lcm"], tools=[env.Calculator()], seed=0, held_out=2)
    tokenizer = warm_start.build(world, seed=0)[1]
    chat = engine.Chat(tokenizer)

    answers = {tuple(chat.prompt(task.question).tolist()): task.payload.entry["answer"] for task in world.tasks(16)}
    count = itertools.count()

    def reply(tokens: Any) -> ScriptedReply:
        rng = np.random.default_rng(next(count))
        [solution] = [answer for prompt, answer in answers.items() if tuple(tokens[: len(prompt)].tolist()) == prompt]
        is_first = tuple(tokens.tolist()) in answers
        text = "<call>6*7</call>" if is_first else f"<answer>{solution if rng.random() < 0.5 else 0}</answer>"
        length = len(chat.action(text))
        return ScriptedReply(text, logprobs=(-rng.random(length)).tolist(), entropies=rng.random(length).tolist())

    limits = {"sampling": engine.Sampling(max_tokens=24), "context_tokens": 128, "task_pool": 16}
    return arl.Collector(engine.Scripted(tokenizer, reply), world, arpo(), store=store, seed=3, **limits)


def imitated(store: arl.Store, iterations: int, *, closed: bool) -> None:
    """Continue `arpo`; the last batch is only committed unless `closed`."""
    collect = imitating(store)
    for iteration in range(collect.iteration, iterations):
        batch = collect.recipe.credit(collect(tasks=2, group_size=6))
        if closed or iteration < iterations - 1:
            collect.engines["policy"].update_weights(None, version=iteration + 1)
            collect.end_iteration(batch, {"loss": 0.25 * iteration, "grad_norm": 1.0})


def outcome(store: arl.Store, iteration: int) -> dict[str, Any]:
    """Return the rows of an iteration, and its final state."""
    trajectories = pl.DataFrame(store.trajectories).filter(iteration=iteration)
    groups = set(trajectories["group_id"].to_list())
    rows = {}
    for name, columns in TABLES.items():
        table = pl.DataFrame(getattr(store, name))
        if name == "nodes":
            table = table.filter(pl.col("group_id").is_in(list(groups)))
        elif name == "steps":
            table = table.filter(pl.col("trajectory_id").is_in(trajectories["trajectory_id"].implode()))
        else:
            table = table.filter(iteration=iteration)
        rows[name] = json.loads(table.select(columns).write_json())
    return {"rows": rows, "metrics": store.state["metrics"], "components": store.state["components"]}


def write(folder: Path) -> None:
    """Write the runs and their expected results."""
    expected: dict[str, Any] = {}
    runs: dict[str, tuple[Callable[[arl.Store], None], Callable[[arl.Store], None], int]] = {
        "search": (lambda store: searched(store, 4, KILLED), lambda store: searched(store, 4), 3),
        "arpo": (lambda store: imitated(store, 3, closed=False), lambda store: imitated(store, 3, closed=True), 2),
    }
    for name, (cut, uninterrupted, last) in runs.items():
        with arl.Store.open(folder / f"{name}-whole") as store:
            uninterrupted(store)
            expected[name] = {"iteration": last, **outcome(store, last)}
        child = os.fork()
        if not child:
            store = arl.Store.open(folder / name)
            cut(store)
            store.close()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == (9 if name == "search" else 0)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
