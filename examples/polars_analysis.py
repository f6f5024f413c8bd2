"""Analyse a run in Polars: success by iteration, tokens by kind, the longest rollouts.

    python examples/polars_analysis.py [RUN]

Without RUN it records a small run first, with a script in place of a model. All queries also work while a run is being
written.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import polars as pl

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start


def small_run(folder: Path) -> None:
    world = env.ReasoningGym(["chain_sum", "lcm"], tools=[env.Calculator()], seed=0)
    _, tokenizer = warm_start.build(world, seed=0)
    script = engine.Scripted(tokenizer, lambda request: f"<answer>{request.seed % 40}</answer>")
    with arl.Store.open(folder) as store:
        collector = arl.Collector(script, world, recipes.GRPO, store=store)
        for iteration in range(2):
            batch = recipes.GRPO.credit(collector(tasks=4, group_size=4))
            script.update_weights(None, version=iteration + 1)
            collector.end_iteration(batch, recipes.GRPO.updates(batch).metrics)
        collector.close()


def ask(folder: Path) -> None:
    run = arl.scan(folder)
    success = run.trajectories.group_by("iteration").agg(pl.len().alias("rollouts"), pl.col("success").mean())
    print(success.sort("iteration").collect())
    print(run.nodes.group_by("kind").agg(pl.col("tokens").list.len().sum()).sort("kind").collect())
    paths = run.trajectories.agentrl.paths(run).select("trajectory_id", pl.col("tokens").list.len())
    print(paths.sort("tokens", "trajectory_id", descending=True).head(2).collect())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        ask(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as parent:
            small_run(Path(parent) / "run")
            ask(Path(parent) / "run")
