"""Play text adventures of TextWorld, and store each move with its state.

    python examples/textworld_game.py

The games are generated on this machine from seeds. A script plays at random, so that the example needs no weights: give
the collector `engine.Vllm(...)` instead. Needs `pip install 'agentrl-core[textworld,train]'`.
"""

from __future__ import annotations

import polars as pl

import agentrl_core as arl
from agentrl_core import engine, env, recipes, warm_start

MOVES = ("take coin", "look", "inventory")


def main() -> None:
    world = env.TextWorld("coin_collector", {"level": 1}, max_turns=4, seed=0)
    _, tokenizer = warm_start.build(env.ReasoningGym(["lcm"], seed=0), seed=0)
    script = engine.Scripted(tokenizer, lambda request: f"<action>{MOVES[request.seed % 3]}</action>")
    collector = arl.Collector(script, world, recipes.GIGPO, processes=1)
    batch = recipes.GIGPO.credit(collector(tasks=1, group_size=6))
    turns = pl.DataFrame(batch.steps).group_by("trajectory_id").len("turns")
    rollouts = pl.DataFrame(batch.trajectories).select("trajectory_id", "reward", "success")
    print(rollouts.join(turns, on="trajectory_id").drop("trajectory_id").sort("turns", "success"))
    collector.close()
    world.close()


if __name__ == "__main__":
    main()
